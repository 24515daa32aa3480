"""A call of the asynchronous client that opens something: awaited, entered with `async with`, or forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dataplane_client import aio
from dataplane_server.testing import running_server


@pytest.fixture
async def client() -> AsyncIterator[aio.AsyncDataPlaneClient]:
    with running_server(memory_bytes=1 << 20) as address:
        async with aio.connect(address) as client:
            await client.register_partition("p", ["x"], 0, ["t"])
            yield client


async def test_who_forgot_await_is_told_so(client: aio.AsyncDataPlaneClient) -> None:
    claim = client.claim("p", "t", ["x"], 1, timeout_s=0)
    with pytest.raises(AttributeError, match="'meta'"):
        claim.meta  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(TypeError, match="await"), claim:  # type: ignore[attr-defined]
        pass
    claim.close()


def test_a_client_that_connects_later_tells_its_transport_without_connecting() -> None:
    """A channel that was opened here would be of another event loop than that of the first call."""
    with running_server(memory_bytes=1 << 20) as address:
        client = aio.connect_later(address)
        assert client.transport == "grpc"

        async def used() -> int:
            async with client:
                return (await client.server_status()).rows

        assert asyncio.run(used()) == 0

"""A proxy between client and server that breaks connections on command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.integration.faults.proxy import FaultProxy

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect


@pytest.fixture
def way() -> str:
    """The proxy speaks TCP only, and what goes through memory does not go through it."""
    return "grpc"


@pytest.fixture
def proxy(address: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(address)
    yield proxy
    proxy.close()


@pytest.fixture
def shaky(proxy: FaultProxy) -> Iterator[DataPlaneClient]:
    """A client whose connection runs through the proxy; `client` goes straight to the same server."""
    with connect(proxy.address, timeout_s=120.0, transport="grpc") as client:
        yield client


@pytest.fixture
async def async_shaky(proxy: FaultProxy) -> AsyncIterator[aio.AsyncDataPlaneClient]:
    async with await aio.connect(proxy.address, timeout_s=120.0, transport="grpc") as client:
        yield client

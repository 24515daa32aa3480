"""One server in a process of its own, which all tests here share. Whatever they did, it has lost nothing in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.hostile.target import Target
from tests.integration.command.conftest import Start, books_balance, start_for_all
from tests.integration.failpoints.lives import errors_in
from tests.waiting import eventually

from dataplane_client.client import connect

__all__ = ["books_balance", "start_for_all"]

_LEAKED_BYTES = 320 << 20
"""What a server's allocator may keep of requests that were under way together, of which 256 MiB are admitted."""


@pytest.fixture(scope="session")
def target(start_for_all: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """It has partition p, every endpoint, and 64 MiB for values."""
    address, port = f"unix://{tmp_path_factory.mktemp('hostile')}/dataplane.sock", "127.0.0.1:0"
    command = start_for_all("--listen", address, "--http", port, "--direct", port)
    with connect(address, transport="grpc", timeout_s=120.0) as client:
        target = Target(command.process.pid, address, client, command.http_address)
        target.fill()
        memory, descriptors = target.own_bytes, target.descriptors
        yield target
        target.close_peers()
        eventually(lambda: target.descriptors <= descriptors)
        assert target.own_bytes - memory < _LEAKED_BYTES
        assert command.process.poll() is None
        assert errors_in(command.log) == []
        target.close()

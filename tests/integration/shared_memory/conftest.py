"""One server that shares its memory, and its clients."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane_client.client import DataPlaneClient, connect
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

MIB = 1 << 20


@contextlib.contextmanager
def stalled(server: ServerThread) -> Iterator[None]:
    """A block in which the server does nothing."""
    go_on = threading.Event()
    server._loop.call_soon_threadsafe(go_on.wait, 200)
    try:
        yield
    finally:
        go_on.set()


@pytest.fixture
def listen(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/dataplane.sock"


@pytest.fixture
def server(listen: str) -> Iterator[ServerThread]:
    """A server with a budget of 64 MiB, which a test may stop."""
    server = ServerThread(ServerConfig(listen=(listen,), limits=Limits(memory_bytes=64 * MIB)))
    yield server
    if server._thread.is_alive():
        server.stop()


@pytest.fixture
def client(server: ServerThread, listen: str) -> Iterator[DataPlaneClient]:
    """A client that shares its memory; partition p has fields x and y."""
    with connect(listen, timeout_s=200.0, transport="shm") as client:
        client.register_partition("p", ["x", "y"], 0, ["train"])
        yield client


@pytest.fixture
def grpc_client(server: ServerThread, listen: str) -> Iterator[DataPlaneClient]:
    """A client that does not."""
    with connect(listen, timeout_s=200.0, transport="grpc") as client:
        yield client

"""A server, a gateway to it in a thread of this process, a client of the server, and a partition. Real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from dataplane_client import DataPlaneClient, connect
from dataplane_http.__main__ import Gateway
from dataplane_http.front import Door
from dataplane_http.tests.asking import Ask, ask_at
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

LOOPBACK = Door("127.0.0.1", users=frozenset())


@contextlib.contextmanager
def running_gateway(server: str, door: Door = LOOPBACK, **tls: object) -> Iterator[str]:
    """Serve a gateway in a thread, for a block. Yields its address."""
    gateway, listener = Gateway(server, door, **tls), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(gateway.serve(sockets=[listener])))
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        gateway.should_exit = True
        thread.join(60.0)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    config = ServerConfig(listen=("127.0.0.1:0",), http="127.0.0.1:0", limits=Limits(memory_bytes=1 << 20))
    server = ServerThread(config)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def gateway(server: ServerThread) -> Iterator[str]:
    with running_gateway(server.addresses[0]) as address:
        yield address


@pytest.fixture
def ask(gateway: str) -> Ask:
    return ask_at(gateway)


@pytest.fixture
def client(server: ServerThread) -> Iterator[DataPlaneClient]:
    """Without partitions at its end."""
    with connect(server.addresses[0], timeout_s=200.0) as client:
        yield client
        for partition in client.partitions():
            client.drop_partition(partition.partition_id)


@pytest.fixture
def partition(client: DataPlaneClient) -> str:
    """A partition with fields of every kind."""
    fields = ["input_ids", "logprobs", "reward", "done", "answer"]
    client.register_partition("p", fields, 0, ["train"], per_token_fields=["input_ids", "logprobs"])
    return "p"

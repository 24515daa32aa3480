"""A server with a door, a client of it, and a partition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.http_door.asking import Ask, ask_at

from dataplane_client.client import DataPlaneClient, connect
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread


@pytest.fixture
def server() -> Iterator[ServerThread]:
    limits = Limits(memory_bytes=1 << 20)
    port = "127.0.0.1:0"
    server = ServerThread(ServerConfig(listen=(port,), http=port, http_door=port, limits=limits))
    yield server
    server.stop()


@pytest.fixture
def client(server: ServerThread) -> Iterator[DataPlaneClient]:
    with connect(server.addresses[0], timeout_s=20.0) as client:
        yield client


@pytest.fixture
def ask(server: ServerThread) -> Ask:
    return ask_at(str(server.server.http_door_address))


@pytest.fixture
def partition(client: DataPlaneClient) -> str:
    """A partition with fields of every kind."""
    fields = ["input_ids", "logprobs", "reward", "done", "answer"]
    client.register_partition("p", fields, 0, ["train"], per_token_fields=["input_ids", "logprobs"])
    return "p"

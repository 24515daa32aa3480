"""Real servers on real sockets. Whatever a test does, the core's laws hold when it is over.

Clients reach the server in one of four ways. The tests of a process share one server for each kind of socket, and each
test finds it without partitions. Tests that meet what outlives partitions (totals, sessions, histories, request ids)
are marked `fresh_server`. One way is in a local Ray cluster of three nodes (`make test-cluster`); there, tests that
start servers of their own are skipped.

The variable FAULT of the environment (latency, slices or resets) puts a proxy with that fault between the clients and
the servers of all tests that take the fixtures below; these then use TCP only, and tests that cannot hold are skipped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.faults.harmless import Reach, reach_through
from tests.integration.faults.unfit import why_unfit
from torch.nested import nested_tensor

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.options import TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.testing import ServerThread

OpenServer = Callable[..., AbstractContextManager[str]]
"""The fixture `open_server`."""

ANY_PORT = "127.0.0.1:0"
_LIMITS = Limits(memory_bytes=256 << 20)

_FAULT = os.environ.get("FAULT", "")
_HERE = Path(__file__).parent
_SUITE = (_HERE, _HERE / "loader")  # what is in other folders speaks to servers by hand, or needs those of its own
TRANSPORTS: dict[str, TransportChoice] = {"grpc": "grpc", "direct": "direct", "shm": "shm", "cluster": "shm"}
_TCP_WAYS = ("grpc", "direct")
DIRECT = pytest.param("direct", marks=pytest.mark.long)
_CLUSTER = pytest.param("cluster", marks=[pytest.mark.cluster, pytest.mark.xdist_group("ray")])


def ways(*others: Any) -> list[Any]:
    """Ways for a parametrized fixture `way`: these and the cluster, or those over a network with a fault."""
    return list(_TCP_WAYS) if _FAULT else [*others, _CLUSTER]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose tests in the cluster or elsewhere. Skip what cannot hold there, or behind the fault."""
    left = {item for item in items if _HERE in item.path.parents and not _is_wanted(item)}
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]
    for item in items:
        where = "cluster" if _in_cluster(item) else _FAULT
        if reason := why_unfit(where, item):
            item.add_marker(pytest.mark.skip(reason=f"{where}: {reason}"))


def _is_wanted(item: pytest.Item) -> bool:
    return not _in_cluster(item) or item.path.parent in _SUITE


def _in_cluster(item: pytest.Item) -> bool:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return params.get("way", params.get("shared_client")) == "cluster"


@pytest.fixture(params=ways("grpc", DIRECT, "shm"))
def way(request: pytest.FixtureRequest) -> str:
    """How clients reach the server: gRPC, its direct port, memory that it shares, or that of a node.

    With "unix", which some tests choose, gRPC over a Unix socket.
    """
    return str(request.param)


@pytest.fixture
def listen(way: str, tmp_path: Path) -> str:
    """Where a server of the test's own is to listen."""
    return _place(way, tmp_path)


def _place(way: str, folder: Path) -> str:
    return ANY_PORT if way in _TCP_WAYS else f"unix://{folder}/dataplane.sock"


@pytest.fixture
def transport(way: str) -> TransportChoice:
    """How values are to travel."""
    return TRANSPORTS.get(way, "grpc")


@pytest.fixture
def reach() -> Iterator[Reach]:
    """Returns the address by which clients reach a server: its own, or a proxy's."""
    with reach_through(_FAULT) as reach:
        yield reach


@contextlib.contextmanager
def _server_at(listen: str) -> Iterator[str]:
    with reach_through(_FAULT) as reach:
        server = ReachedServer(ServerConfig(listen=(listen,), direct=ANY_PORT, limits=_LIMITS), reach)
        try:
            yield server.addresses[0]
        finally:
            server.stop()


@pytest.fixture(scope="session")
def open_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenServer]:
    """Blocks with the address of a server without partitions for a way: one that all share, or one for each block if it
    must be fresh, or if there is a fault.
    """
    shared: dict[bool, str] = {}
    with contextlib.ExitStack() as running:

        @contextlib.contextmanager
        def opened(way: str, *, fresh: bool = False) -> Iterator[str]:
            if way == "cluster":
                with request.getfixturevalue("three_nodes").emptied() as address:
                    yield address
                return
            listen = _place(way, tmp_path_factory.mktemp("s"))
            if fresh or _FAULT:
                with _server_at(listen) as address:
                    yield address
                return
            is_tcp = way in _TCP_WAYS
            if is_tcp not in shared:
                shared[is_tcp] = running.enter_context(_server_at(listen))
            try:
                yield shared[is_tcp]
            finally:
                with connect(shared[is_tcp]) as client:
                    for partition in client.partitions():
                        client.drop_partition(partition.partition_id)

        yield opened


@pytest.fixture
def address(way: str, open_server: OpenServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A running server without partitions."""
    with open_server(way, fresh=request.node.get_closest_marker("fresh_server") is not None) as address:
        yield address


@pytest.fixture
def client(address: str, transport: TransportChoice) -> Iterator[DataPlaneClient]:
    """A blocking client of it."""
    with connect(address, timeout_s=120.0, transport=transport) as client:
        yield client


@pytest.fixture
async def async_client(address: str, transport: TransportChoice) -> AsyncIterator[aio.AsyncDataPlaneClient]:
    """An asynchronous client of it."""
    async with await aio.connect(address, timeout_s=120.0, transport=transport) as client:
        yield client


class ReachedServer(ServerThread):
    """A server whose addresses are those by which clients reach it, and so is the direct port that it names."""

    def __init__(self, config: ServerConfig, reach: Reach) -> None:
        super().__init__(config)
        self._reach = reach
        named = self.server.servicer._direct_port
        if named is not None:
            named.port = int(reach(str(self.server.direct_address)).rpartition(":")[2])

    @property
    def addresses(self) -> list[str]:
        return [self._reach(address) for address in super().addresses]


@pytest.fixture
def start_server(reach: Reach, request: pytest.FixtureRequest) -> Iterator[Callable[..., ServerThread]]:
    """Start further servers: settings of ServerConfig by name, or of Limits."""
    if _in_cluster(request.node):
        pytest.skip("it starts a server of its own, with settings that the cluster of all tests does not have")
    with contextlib.ExitStack() as running:

        def start(
            listen: tuple[str, ...] = (ANY_PORT,), http: str | None = None, insecure: bool = False, **limits: Any
        ) -> ServerThread:
            bounds = Limits(**limits)
            config = ServerConfig(listen=listen, http=http, direct=ANY_PORT, insecure=insecure, limits=bounds)
            server = ReachedServer(config, reach)
            running.callback(server.stop)
            return server

        yield start


@pytest.fixture
def small_server(start_server: Callable[..., ServerThread]) -> ServerThread:
    """A server with a memory budget of 64 KiB."""
    return start_server(memory_bytes=64 << 10)


@pytest.fixture
def small_client(small_server: ServerThread, transport: TransportChoice) -> Iterator[DataPlaneClient]:
    """A client of `small_server`."""
    with connect(small_server.addresses[0], timeout_s=120.0, transport=transport) as client:
        yield client


@contextlib.contextmanager
def unchanged(client: DataPlaneClient) -> Iterator[None]:
    """A block after which the server describes itself and all partitions as before; only a session may be new."""

    def described() -> object:
        return client.partitions(), replace(client.server_status(), uptime_s=0.0, sessions=0, nodes=())

    before = described()
    yield
    assert described() == before


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that block."""
    with ThreadPoolExecutor(max_workers=64) as pool:
        yield pool


@pytest.fixture
def filled(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with rows a, b, c of 2, 3, 1 tokens and a field of every kind; `logprobs`, declared per-token like
    `tokens`, is not produced yet.
    """
    fields = ["tokens", "logprobs", "reward", "image", "text"]
    client.register_partition("p", fields, 3, ["train"], per_token_fields=["tokens", "logprobs"])
    text = np.array(["x", None, True], object)
    tokens = nested_tensor([torch.arange(2), torch.arange(3), torch.arange(1)], layout=torch.jagged)
    columns = {"tokens": tokens, "reward": torch.zeros(3), "image": torch.zeros(3, 4, 5), "text": text}
    client.put_samples(["a", "b", "c"], "p", columns, [{"version": 1}] * 3)
    return client

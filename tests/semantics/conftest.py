"""What the data plane means: one file for each behaviour.

Most examples have a `caller` of the core with a clock that they steer, since the core alone decides. Those whose calls
or answers travel in a form of their own have `via`: they hold in the core, and for a client over gRPC, the direct port,
shared memory and, with the marker `cluster`, in a Ray cluster. Examples that need several clients or processes have
`client` over the same ways but the core. One server for each way is shared by all examples and emptied after each.

The variable FAULT of the environment puts a fault between clients and servers, as in `tests/integration`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.core.conftest import caller as caller
from tests.core.conftest import new_caller as new_caller
from tests.integration.conftest import ReachedServer
from tests.integration.conftest import eventually as eventually
from tests.integration.conftest import reach as reach
from tests.integration.conftest import small_server as small_server
from tests.integration.conftest import start_server as start_server
from tests.integration.conftest import threads as threads
from tests.integration.conftest import unchanged as unchanged
from tests.integration.faults.harmless import reach_through
from tests.integration.faults.unfit import why_unfit

for _helper in ("callers", "core_caller", "client_caller"):
    pytest.register_assert_rewrite(f"tests.semantics.{_helper}")

from tests.core.caller import Caller as CoreCalls  # noqa: E402 - after their assertions were registered to be told in full
from tests.semantics.callers import Caller  # noqa: E402
from tests.semantics.client_caller import ClientCaller  # noqa: E402
from tests.semantics.core_caller import CoreCaller  # noqa: E402

from dataplane_client.client import DataPlaneClient, connect  # noqa: E402
from dataplane_client.options import TransportChoice  # noqa: E402
from dataplane_server.config import ServerConfig  # noqa: E402
from dataplane_server.core.calls.limits import Limits  # noqa: E402

_HERE = Path(__file__).parent
_FAULT = os.environ.get("FAULT", "")
_CLUSTER = pytest.param("cluster", marks=[pytest.mark.cluster, pytest.mark.xdist_group("ray")])
_WIRES = ["grpc", "direct"] if _FAULT else ["grpc", "direct", "shm", _CLUSTER]
_WAYS = _WIRES if _FAULT else ["core", *_WIRES]
_TRANSPORTS: dict[str, TransportChoice] = {"grpc": "grpc", "direct": "direct", "shm": "shm", "cluster": "shm"}

ON_ONE_WAY = pytest.mark.parametrize("way", ["grpc"], indirect=True)
"""For examples of `client` that say nothing of the way."""

OpenServer = Callable[[str], contextlib.AbstractContextManager[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot hold in a cluster or behind the fault."""
    for item in items:
        if _HERE in item.path.parents:
            params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
            ways = {value for value in params.values() if isinstance(value, str)}
            where = "cluster" if "cluster" in ways else _FAULT
            if reason := why_unfit(where, item):
                item.add_marker(pytest.mark.skip(reason=f"{where}: {reason}"))


@contextlib.contextmanager
def _running(way: str, folder: str, fault: str) -> Iterator[ReachedServer]:
    listen = f"unix://{folder}/s" if way == "shm" else "127.0.0.1:0"
    config = ServerConfig(listen=(listen,), direct="127.0.0.1:0", limits=Limits(memory_bytes=256 << 20))
    with reach_through(fault) as reach:
        server = ReachedServer(config, reach)
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def open_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenServer]:
    """Blocks with the address of an empty server for a way: one for all, or one for each block if there is a fault."""
    with contextlib.ExitStack() as stack:
        servers: dict[str, str] = {}

        @contextlib.contextmanager
        def emptied(address: str) -> Iterator[str]:
            try:
                yield address
            finally:
                with connect(address) as client:
                    for partition in client.partitions():
                        client.drop_partition(partition.partition_id)

        @contextlib.contextmanager
        def opened(way: str) -> Iterator[str]:
            if way == "cluster":
                with request.getfixturevalue("three_nodes").emptied() as address:
                    yield address
            elif _FAULT:
                with _running(way, str(tmp_path_factory.mktemp("s")), _FAULT) as server:
                    yield server.addresses[0]
            else:
                if way not in servers:
                    running = _running(way, str(tmp_path_factory.mktemp("s")), "")
                    servers[way] = stack.enter_context(running).addresses[0]
                with emptied(servers[way]) as address:
                    yield address

        yield opened


@pytest.fixture(params=_WIRES)
def way(request: pytest.FixtureRequest) -> str:
    """How clients reach the server."""
    return str(request.param)


@pytest.fixture
def transport(way: str) -> TransportChoice:
    return _TRANSPORTS[way]


@pytest.fixture
def address(way: str, open_server: OpenServer) -> Iterator[str]:
    """A server without partitions."""
    with open_server(way) as address:
        yield address


@pytest.fixture
def client(address: str, transport: TransportChoice) -> Iterator[DataPlaneClient]:
    """A client of it, whose session has ended when the next test begins."""
    with connect(address, timeout_s=60.0, transport=transport) as client:
        yield client


@pytest.fixture(params=_WAYS)
def via(
    request: pytest.FixtureRequest,
    open_server: OpenServer,
    threads: ThreadPoolExecutor,
    new_caller: Callable[..., CoreCalls],
) -> Iterator[Caller]:
    """A caller of the core, or of a server on one of the ways; partition p has the fields a and b."""
    way = str(request.param)
    with contextlib.ExitStack() as stack:
        one: Caller
        if way == "core":
            one = CoreCaller(new_caller())
        else:
            address = stack.enter_context(open_server(way))
            client = stack.enter_context(connect(address, timeout_s=60.0, transport=_TRANSPORTS[way]))
            one = ClientCaller(client, threads)
        one.register()
        yield one
        if way != "core":
            stack.callback(one.drop)  # before its client is closed: calls that wait end

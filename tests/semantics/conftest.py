"""What the data plane means: one file for each behaviour.

Most examples have a `caller` of the core with a clock that they steer, since the core alone decides. Those whose calls
or answers travel in a form of their own have `via`: they hold in the core, and for a client over gRPC, the direct port,
shared memory and, with the marker `cluster`, in a Ray cluster. Examples that need several clients or processes have
`client` over the same ways but the core. They share servers as in `tests/integration`.

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
from tests.integration.conftest import DIRECT, TRANSPORTS, OpenServer, ways
from tests.integration.conftest import address as address
from tests.integration.conftest import client as client
from tests.integration.conftest import open_server as open_server
from tests.integration.conftest import reach as reach
from tests.integration.conftest import small_server as small_server
from tests.integration.conftest import start_server as start_server
from tests.integration.conftest import threads as threads
from tests.integration.conftest import transport as transport
from tests.integration.conftest import unchanged as unchanged
from tests.integration.conftest import way as way
from tests.integration.faults.unfit import why_unfit

for _helper in ("callers", "core_caller", "client_caller"):
    pytest.register_assert_rewrite(f"tests.semantics.{_helper}")

from tests.core.caller import Caller as CoreCalls  # noqa: E402 - after their assertions were registered to be told in full
from tests.semantics.callers import Caller  # noqa: E402
from tests.semantics.client_caller import ClientCaller  # noqa: E402
from tests.semantics.core_caller import CoreCaller  # noqa: E402

from dataplane_client.client import connect  # noqa: E402

_HERE = Path(__file__).parent
_FAULT = os.environ.get("FAULT", "")

ON_ONE_WAY = pytest.mark.parametrize("way", ["grpc"], indirect=True)
"""For examples of `client` that say nothing of the way."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot hold in a cluster or behind the fault."""
    for item in items:
        if _HERE in item.path.parents:
            params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
            ways = {value for value in params.values() if isinstance(value, str)}
            where = "cluster" if "cluster" in ways else _FAULT
            if reason := why_unfit(where, item):
                item.add_marker(pytest.mark.skip(reason=f"{where}: {reason}"))


@pytest.fixture(params=ways(*([] if _FAULT else ["core"]), "grpc", DIRECT, "shm"))
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
            client = stack.enter_context(connect(address, timeout_s=60.0, transport=TRANSPORTS[way]))
            one = ClientCaller(client, threads)
        one.register()
        yield one
        if way != "core":
            stack.callback(one.drop)  # before its client is closed: calls that wait end

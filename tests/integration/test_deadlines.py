"""Verbs that make several calls, at a server that is slow or does not answer: all calls share one deadline. Calls that
need a thread have theirs, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch
from tests.integration.conftest import ANY_PORT
from tests.integration.faults.proxy import FaultProxy
from tests.waiting import eventually, soon

from dataplane_client import aio
from dataplane_client._verbs._async.runtime import _threads
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError, DeadlineError, UnavailableError
from dataplane_client.options import TransportChoice
from dataplane_server.config import ServerConfig
from dataplane_server.testing import ServerThread

MARGIN_S = 2.0
"""How much later a verb may end that may wait at the server."""
SLOW_S = 8.0
"""For a busy machine."""
FIELDS = {"tokens": torch.tensor([[1, 2, 0], [3, 4, 5]])}


@pytest.fixture
def server(start_server: Callable[..., ServerThread]) -> ServerThread:
    return start_server(memory_bytes=64 << 10)


@pytest.fixture
def direct(server: ServerThread) -> Iterator[DataPlaneClient]:
    """A client with a connection of its own, which has registered the partition."""
    with connect(server.addresses[0], transport="grpc") as client:
        client.register_partition("p", ["tokens", "x"], 0, ["train"], per_token_fields=["tokens"])
        yield client


@pytest.fixture
def proxy(server: ServerThread, direct: DataPlaneClient) -> Iterator[FaultProxy]:
    proxy = FaultProxy(server.addresses[0])
    yield proxy
    proxy.close()


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[DataPlaneClient]:
    """One behind the proxy, with a deadline of its own that is late."""
    with connect(proxy.address, transport="grpc", timeout_s=12.0) as client:
        yield client
        proxy.swallow, proxy.delay_s = set(), {}
        proxy.reset_connections()


def test_a_write_that_has_to_be_sent_again_ends_at_its_deadline(client: DataPlaneClient, proxy: FaultProxy) -> None:
    """The client does not know which fields are per-token: the put is refused, and the client asks."""
    client.server_status()
    proxy.delay_s["answers"] = 0.7
    with pytest.raises(DeadlineError):
        client.put_samples(["a", "b"], "p", FIELDS, sequence_lengths=[2, 3], timeout_s=1.0)


def test_what_a_claim_consists_of_is_told_in_time_or_not_at_all(client: DataPlaneClient, proxy: FaultProxy) -> None:
    """It takes a call for each row."""
    client.put_samples(["a", "b"], "p", {"x": torch.zeros(2)})
    claim = client.claim("p", "train", ["x"], 2)
    proxy.delay_s["answers"] = 0.7
    with pytest.raises(DeadlineError):
        claim.provenance(timeout_s=1.0)


def test_a_group_whose_put_gets_no_answer_is_given_up_at_the_deadline(
    client: DataPlaneClient, direct: DataPlaneClient, proxy: FaultProxy
) -> None:
    direct.put_samples(["full"], "p", {"x": torch.zeros(1, 10_000)})
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        put = pool.submit(client.put_group, "p", "g", ["a"], {"x": torch.zeros(1, 10_000)}, timeout_s=3.0)
        eventually(lambda: direct.partition("p").open_groups == 1)
        proxy.swallow = {"requests", "answers"}
        with pytest.raises(DataPlaneError):
            put.result(300)
        assert time.monotonic() - began < 3.0 + MARGIN_S + SLOW_S
    proxy.reset_connections()
    eventually(lambda: direct.partition("p").open_groups == 0)


@contextlib.contextmanager
def no_thread_is_free() -> Iterator[None]:
    """A block in which work for the package's threads waits."""
    go_on = threading.Event()
    busy = [_threads().submit(go_on.wait, 400) for _ in range(_threads()._max_workers)]
    try:
        yield
    finally:
        go_on.set()
        wait(busy)


@pytest.mark.parametrize("transport", ["shm", "direct"])
async def test_a_call_that_waits_for_a_thread_ends_at_its_deadline(transport: TransportChoice) -> None:
    """What moves, and how, is as if it had not been made."""
    server, big = ServerThread(ServerConfig((ANY_PORT,), direct=ANY_PORT)), torch.arange(1 << 20).reshape(1, -1)
    address = server.addresses[0]
    async with aio.connect(address, timeout_s=200.0, transport=transport) as client:
        await client.register_partition("p", ["x"], 0, ["train"])
        await client.put_samples(["a"], "p", {"x": big})
        with no_thread_is_free():
            with pytest.raises(DeadlineError):
                await asyncio.wait_for(client.put_samples(["b"], "p", {"x": big}, timeout_s=0.5), 200)
            with pytest.raises(DeadlineError):
                await asyncio.wait_for(client.get_samples(["a"], "p", ["x"], timeout_s=0.5), 200)
            with pytest.raises((DeadlineError, UnavailableError)):
                await asyncio.wait_for(aio.connect(address, connect_timeout_s=0.5, transport=transport), 200)
        assert torch.equal((await client.get_samples(["a"], "p", ["x"]))["x"], big)
        assert client.transport == transport
        with connect(address, transport="grpc") as watch:
            await soon(lambda: watch.server_status().memory_used_bytes == big.nbytes)
    server.stop()

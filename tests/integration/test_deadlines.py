"""Verbs that make several calls, at a server that is slow or does not answer: all calls share one deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.integration.faults.proxy import FaultProxy
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError, DeadlineError
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

"""Loops whose rows were claimed and could not be read at first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.integration.faults.proxy import FaultProxy
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DeadlineError, UnavailableError
from dataplane_client.loader import ClaimIterator, ClaimLoader, LoadedBatch
from dataplane_server.testing import ServerThread

IDS = ["a", "b", "c"]
SHORT_BYTES = 1 << 16
"""More than all answers without values; fewer than those of a row."""


@pytest.fixture
def server(start_server: Callable[..., ServerThread]) -> ServerThread:
    return start_server(memory_bytes=64 << 20)


@pytest.fixture
def client(server: ServerThread) -> Iterator[DataPlaneClient]:
    """A client with a connection of its own, which has put three rows."""
    with connect(server.addresses[0], timeout_s=200.0) as client:
        client.register_partition("p", ["x"], len(IDS), ["train"])
        client.put_samples(IDS, "p", {"x": torch.ones(len(IDS), 2 * SHORT_BYTES, dtype=torch.uint8)})
        yield client


@pytest.fixture
def proxy(server: ServerThread, client: DataPlaneClient) -> Iterator[FaultProxy]:
    """A proxy that lets no values through."""
    proxy = FaultProxy(server.addresses[0])
    proxy.cut_after, proxy.cuts_left = {"answers": SHORT_BYTES}, 1 << 30
    yield proxy
    proxy.close()


@pytest.fixture
def batches(proxy: FaultProxy, client: DataPlaneClient) -> Iterator[ClaimIterator]:
    """A loop that has claimed all rows and failed to read them."""
    options: dict[str, Any] = {"transport": "grpc", "timeout_s": 1.0, "session_grace_s": 100.0}
    with ClaimLoader(
        proxy.address, "p", "train", ["x"], len(IDS), idle_timeout_s=3.0, client_options=options
    ) as loader:
        batches = iter(loader)
        eventually(lambda: client.partition("p").task("train").claimed_rows == len(IDS))
        with pytest.raises((DeadlineError, UnavailableError)):
            next(batches)
        yield batches


def next_when_read(batches: ClaimIterator) -> LoadedBatch:
    """The next batch, for which a loop on a busy machine may have to wait for longer than its idle_timeout_s."""
    while True:
        with contextlib.suppress(DeadlineError):
            return next(batches)


def test_a_read_is_repeated_until_it_is_answered(batches: ClaimIterator, proxy: FaultProxy) -> None:
    proxy.cuts_left = 0
    batch = next_when_read(batches)
    assert (batch.meta.sample_ids, batch.deliveries) == (IDS, [1, 1, 1])
    assert bool((batch.data["x"] == 1).all())


def test_a_row_that_is_removed_before_it_is_read_costs_the_others_no_delivery(
    batches: ClaimIterator, proxy: FaultProxy, client: DataPlaneClient
) -> None:
    client.clear_samples(["a"], "p")
    client.clear_samples(["b"], "p")
    client.put_samples(["b"], "p", {"x": torch.zeros(1, 2 * SHORT_BYTES, dtype=torch.uint8)})
    proxy.reset_connections()  # a read that began before would still get the former rows
    proxy.cuts_left = 0
    batch = next_when_read(batches)
    assert (sorted(batch.meta.sample_ids), batch.deliveries) == (["b", "c"], [1, 1])
    assert list(batches) == []


def test_a_field_that_a_row_lacks_ends_the_loop(server: ServerThread, client: DataPlaneClient) -> None:
    """The claim did not require it, so the row would be claimed again and again."""
    client.register_partition("p", ["x", "y"], len(IDS), ["train"], replace=True)
    with ClaimLoader(server.addresses[0], "p", "train", ["x", "y"], 1, required_fields=["x"]) as loader:
        batches = iter(loader)
        with pytest.raises(KeyError, match="has not produced field 'y'"):
            next(batches)

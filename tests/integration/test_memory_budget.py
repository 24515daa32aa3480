"""The memory budget is hard: what does not fit waits, first come first served, and is then refused whole."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.integration.conftest import unchanged
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError, InvalidArgumentError, OutOfSpaceError
from dataplane_client.options import TransportChoice
from dataplane_server.testing import ServerThread

KIB = 1 << 10
BUDGET = 64 * KIB


def rows(n: int, bytes_each: int) -> dict[str, torch.Tensor]:
    return {"x": torch.arange(n * bytes_each, dtype=torch.int64).to(torch.uint8).reshape(n, bytes_each)}


def fill(client: DataPlaneClient, kib: int = 60) -> None:
    """Register partition p and leave 64 - kib KiB free."""
    client.register_partition("p", ["x", "y"], 0, ["train"])
    client.put_samples([f"full{i}" for i in range(kib)], "p", rows(kib, KIB))


def test_a_put_that_does_not_fit_waits_until_its_deadline_and_is_refused_whole(small_client: DataPlaneClient) -> None:
    fill(small_client)
    began = time.monotonic()
    told = "holds 8 KiB of values, 4 KiB of the memory"
    with unchanged(small_client), pytest.raises(TimeoutError, match=told) as caught:
        small_client.put_samples(["a", "b"], "p", rows(2, 4 * KIB), [{"n": 1}, {"n": 2}], timeout_s=0.3)
    assert time.monotonic() - began >= 0.3
    error = caught.value
    assert isinstance(error, OutOfSpaceError)
    assert (error.reason, error.details["memory_budget_bytes"]) == ("NO_SPACE", str(BUDGET))
    assert (error.retry_after_s or 0) > 0


def test_a_put_larger_than_the_whole_budget_is_refused_at_once(small_client: DataPlaneClient) -> None:
    fill(small_client, 1)
    told = "holds 64 KiB of values, .* the whole memory budget is 64 KiB: put fewer rows"
    with unchanged(small_client), pytest.raises(InvalidArgumentError, match=told) as caught:
        small_client.put_samples(["a"], "p", rows(1, BUDGET + 1), timeout_s=200.0)
    assert caught.value.reason == "PUT_TOO_LARGE"


def test_a_commit_whose_columns_do_not_fit_is_refused_and_may_wait_under_the_same_claim(
    small_client: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    fill(small_client)
    claim = small_client.claim("p", "train", ["x"], 2)
    columns = {"y": torch.zeros(2, 4 * KIB, dtype=torch.uint8)}
    with unchanged(small_client), pytest.raises(OutOfSpaceError):
        claim.commit(columns, timeout_s=0.1)
    assert claim.state == "open"
    commit = threads.submit(claim.commit, columns)
    eventually(lambda: small_client.server_status().waiting_puts == 1)
    small_client.clear_samples([f"full{i}" for i in range(30, 60)], "p")
    assert commit.result(200) == 2


def test_a_caller_that_goes_away_leaves_the_queue(
    small_server: ServerThread,
    small_client: DataPlaneClient,
    transport: TransportChoice,
    threads: ThreadPoolExecutor,
) -> None:
    fill(small_client)
    with connect(small_server.addresses[0], transport=transport) as other:
        put = threads.submit(other.put_samples, ["large"], "p", rows(1, 50 * KIB))
        eventually(lambda: small_client.server_status().waiting_puts == 1)
    assert isinstance(put.exception(20), DataPlaneError)
    eventually(lambda: small_client.server_status().waiting_puts == 0)
    small_client.put_samples(["small"], "p", rows(1, 4 * KIB), timeout_s=0.0)


def test_a_stream_many_times_the_budget_passes_through_it_intact(
    small_client: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    small_client.register_partition("p", ["x"], 40, ["train"])

    def produce(first: int) -> None:
        for i in range(first, 40, 4):
            small_client.put_samples([f"s{i}"], "p", {"x": torch.full((1, 30 * KIB), i, dtype=torch.uint8)})

    producers = [threads.submit(produce, first) for first in range(4)]
    seen = []
    for _ in range(40):
        with small_client.claim("p", "train", ["x"], 1) as claim:
            value = small_client.get_data(claim.meta)["x"]
            seen.append(claim.meta.sample_ids[0])
            assert (value == int(seen[-1][1:])).all()
        small_client.clear_samples(claim.meta.sample_ids, "p")
    for producer in producers:
        producer.result(200)
    assert sorted(seen) == sorted(f"s{i}" for i in range(40))
    assert small_client.server_status().memory_used_bytes == 0

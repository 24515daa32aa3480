"""Many callers at once: every row reaches exactly one of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.integration.conftest import Eventually

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import EndOfDataError

CLAIMERS = 50
ROWS = 600


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["a", "b"], ROWS, ["train"])
    return client


def produce(client: DataPlaneClient, first: int, count: int) -> None:
    """Rows in small puts, each completed by a second put."""
    for begin in range(first, first + count, 10):
        ids = [f"s{row}" for row in range(begin, begin + 10)]
        client.put_samples(ids, "p", {"a": torch.arange(begin, begin + 10)})
        client.put_samples(ids, "p", {"b": torch.zeros(10)})


def consume(client: DataPlaneClient, seed: int, release_share: float) -> list[str]:
    """Claim until the end of data; some claims are released. The samples that were committed."""
    draw = random.Random(seed)
    committed: list[str] = []
    while True:
        try:
            claim = client.claim("p", "train", ["a", "b"], 8, min_size=1)
        except EndOfDataError:
            return committed
        if draw.random() < release_share:
            claim.release()
            continue
        values = client.get_data(claim.meta)["a"].tolist()
        assert [f"s{value}" for value in values] == claim.meta.sample_ids
        assert claim.commit() == claim.meta.size
        committed += claim.meta.sample_ids


@pytest.mark.parametrize("release_share", [0.0, 0.3], ids=["all commit", "some release"])
def test_each_row_is_committed_exactly_once_among_50_claimers(
    flow: DataPlaneClient, threads: ThreadPoolExecutor, release_share: float
) -> None:
    claimers = [threads.submit(consume, flow, seed, release_share) for seed in range(CLAIMERS)]
    producers = [threads.submit(produce, flow, first, ROWS // 4) for first in range(0, ROWS, ROWS // 4)]
    for producer in producers:
        producer.result(60)
    flow.close_partition("p")
    committed = Counter(sample for claimer in claimers for sample in claimer.result(60))
    assert committed == Counter(f"s{row}" for row in range(ROWS))
    assert flow.check_consumption_status("p", ["train"])


async def test_a_claim_whose_task_is_cancelled_takes_no_rows(
    flow: DataPlaneClient, async_client: aio.AsyncDataPlaneClient, eventually: Eventually
) -> None:
    claim = asyncio.create_task(async_client.claim("p", "train", ["a"], 1))
    await asyncio.to_thread(lambda: eventually(lambda: flow.server_status().waiting_claims == 1))
    claim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claim
    await asyncio.to_thread(lambda: eventually(lambda: flow.server_status().waiting_claims == 0))
    await async_client.put_samples(["s"], "p", {"a": torch.zeros(1)})
    assert (await async_client.claim("p", "train", ["a"], 1, timeout_s=0)).meta.sample_ids == ["s"]


def test_puts_of_many_threads_to_the_same_rows_leave_one_of_the_values_whole(
    flow: DataPlaneClient, threads: ThreadPoolExecutor
) -> None:
    ids = [f"s{row}" for row in range(20)]

    def write(value: int) -> None:
        flow.put_samples(ids, "p", {"a": torch.full((20, 500), value), "b": torch.full((20, 3), value)})

    for done in [threads.submit(write, value) for value in range(30)]:
        done.result(60)
    got = flow.get_samples(ids, "p", ["a", "b"])
    assert len({int(value) for field in ("a", "b") for value in got[field].unique()}) == 1
    assert flow.partition("p").size_bytes == 20 * 503 * 8

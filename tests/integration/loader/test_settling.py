"""What becomes of a batch: committed when the next one is asked for, given back when the loop fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClosedError, PreconditionError
from dataplane_client.loader import ClaimLoader

Loader = Callable[..., ClaimLoader]
Rows = Callable[[int], None]
Eventually = Callable[[Callable[[], object]], None]
WORKERS = pytest.mark.parametrize("num_workers", [0, 2], ids=["thread", "workers"])


@pytest.fixture
def consumed(client: DataPlaneClient) -> Callable[[], int]:
    """How many rows of p are consumed now."""
    return lambda: client.partition("p").task("train").consumed_rows


def fail(loader: ClaimLoader, at_hand: list[str]) -> None:
    """Fail with the first batch at hand."""
    with loader:
        for batch in loader:
            at_hand += batch.meta.sample_ids
            raise ZeroDivisionError


@WORKERS
def test_a_batch_is_committed_when_the_next_one_is_asked_for(
    fill: Rows, loader: Loader, consumed: Callable[[], int], num_workers: int
) -> None:
    fill(12)
    seen = [consumed() for _ in loader(4, num_workers=num_workers)]
    assert seen == [0, 4, 8]
    assert consumed() == 12


@WORKERS
def test_columns_are_written_back_by_a_commit_that_takes_the_place_of_the_automatic_one(
    fill: Rows, loader: Loader, client: DataPlaneClient, num_workers: int
) -> None:
    fill(4)
    for batch in loader(2, num_workers=num_workers):
        assert batch.commit({"advantage": batch.data["number"] * 10}) == 2
        with pytest.raises(PreconditionError, match="committed already"):
            batch.commit()
    ids = [f"s{number}" for number in range(4)]
    assert client.get_samples(ids, "p", ["advantage"])["advantage"].tolist() == [0, 10, 20, 30]


@WORKERS
def test_rows_that_the_loop_releases_come_again(fill: Rows, loader: Loader, num_workers: int) -> None:
    fill(2)
    rows = iter(loader(2, num_workers=num_workers))
    first = next(rows)
    assert first.release(reason="not good enough") == 2
    (again,) = rows
    assert (again.meta.sample_ids, again.deliveries) == (first.meta.sample_ids, [2, 2])
    assert again.fence > first.fence


@WORKERS
def test_the_rows_of_a_loop_that_fails_come_again_as_failed_and_those_claimed_ahead_as_untouched(
    fill: Rows, loader: Loader, num_workers: int
) -> None:
    fill(8)
    failing = loader(2, num_workers=num_workers)
    at_hand: list[str] = []
    with pytest.raises(ZeroDivisionError):
        fail(failing, at_hand)
    deliveries = {
        sample_id: delivery
        for batch in loader(2)
        for sample_id, delivery in zip(batch.meta.sample_ids, batch.deliveries, strict=True)
    }
    assert deliveries == {f"s{number}": 1 for number in range(8)} | dict.fromkeys(at_hand, 2)


def test_the_reason_of_a_failed_delivery_is_the_error_of_the_loop(loader: Loader, client: DataPlaneClient) -> None:
    client.register_partition("p", ["tokens", "number", "text"], 1, ["train"], max_deliveries=1)
    client.put_samples(["s0"], "p", {name: torch.zeros(1) for name in ("tokens", "number", "text")})
    with pytest.raises(ZeroDivisionError):
        fail(loader(1), [])
    assert [letter.reason for letter in client.dead_letters("p", "train")] == ["ZeroDivisionError"]


def test_a_block_that_is_left_in_good_order_commits_what_is_at_hand(
    fill: Rows, loader: Loader, consumed: Callable[[], int]
) -> None:
    fill(8)
    with loader(2) as rows:
        for _ in rows:
            break
    assert consumed() == 2


def test_a_loop_that_is_left_outside_of_a_block_gives_its_rows_back(
    fill: Rows, loader: Loader, client: DataPlaneClient
) -> None:
    fill(8)
    for batch in loader(2):
        at_hand = batch.meta.sample_ids
        break
    assert client.claim("p", "train", [], 8, timeout_s=0).meta.sample_ids[:2] == at_hand


@WORKERS
def test_closing_half_way_gives_everything_back_at_once(
    fill: Rows, loader: Loader, client: DataPlaneClient, num_workers: int
) -> None:
    fill(100)
    made = loader(4, num_workers=num_workers, client_options={"session_grace_s": 3600.0})
    rows = iter(made)
    used = [next(rows).meta.size for _ in range(3)][:-1]
    made.close()
    assert client.claim("p", "train", [], 100, min_size=100 - sum(used), timeout_s=0).meta.size == 92
    with pytest.raises(ClosedError):
        next(rows)


@WORKERS
def test_closing_wakes_a_loop_that_waits(
    announce: Rows,
    loader: Loader,
    threads: ThreadPoolExecutor,
    client: DataPlaneClient,
    eventually: Eventually,
    num_workers: int,
) -> None:
    announce(1)
    made = loader(1, num_workers=num_workers)
    waiting = threads.submit(next, iter(made))
    eventually(lambda: client.partition("p").task("train").waiting_claims)
    made.close()
    with pytest.raises(ClosedError):
        waiting.result(20)


@WORKERS
def test_no_more_is_claimed_ahead_than_was_asked_for(
    fill: Rows, loader: Loader, claimed: Callable[[], int], eventually: Eventually, num_workers: int
) -> None:
    fill(200)
    ahead = max(num_workers, 1) * 3 * 4
    rows = iter(loader(4, prefetch=3, num_workers=num_workers))
    most = 0
    eventually(lambda: claimed() == ahead)
    for _ in range(3):
        next(rows)
        eventually(lambda: claimed() == ahead + 4)
    for _ in rows:
        most = max(most, claimed())
    assert 4 <= most <= ahead + 4


def test_a_batch_in_another_process_can_be_read_but_not_settled(fill: Rows, loader: Loader) -> None:
    fill(2)
    rows = iter(loader(2))
    batch = next(rows)
    twin = copy.deepcopy(batch)
    kept = (batch.meta, batch.claim_id, batch.fence, batch.deliveries)
    assert (twin.meta, twin.claim_id, twin.fence, twin.deliveries) == kept
    assert torch.equal(twin.data["tokens"], batch.data["tokens"])
    with pytest.raises(PreconditionError, match=f"claim {batch.claim_id} was sent here from another process"):
        twin.commit()
    with pytest.raises(PreconditionError, match="another process"):
        twin.release()
    assert batch.commit() == 2

"""When a loader commits a batch, and when it releases one."""

from __future__ import annotations

import copy
import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.integration.loader.conftest import Loader, announce, claimed, fill
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClaimFencedError, ClosedError, PreconditionError
from dataplane_client.loader import ClaimLoader


def consumed(client: DataPlaneClient) -> int:
    return client.partition("p").task("train").consumed_rows


def fail(loader: ClaimLoader, at_hand: list[str]) -> None:
    """Raise an error while the first batch is current."""
    with loader:
        for batch in loader:
            at_hand += batch.meta.sample_ids
            raise ZeroDivisionError


def test_a_batch_is_committed_when_the_next_one_is_asked_for(client: DataPlaneClient, loader: Loader) -> None:
    fill(client, 12)
    seen = [consumed(client) for _ in loader(4)]
    assert seen == [0, 4, 8]
    assert consumed(client) == 12


def test_a_commit_with_columns_replaces_the_automatic_commit(loader: Loader, client: DataPlaneClient) -> None:
    fill(client, 4)
    for batch in loader(2):
        assert batch.commit({"advantage": batch.data["number"] * 10}) == 2
        with pytest.raises(PreconditionError):
            batch.commit()
    ids = [f"s{number}" for number in range(4)]
    assert client.get_samples(ids, "p", ["advantage"])["advantage"].tolist() == [0, 10, 20, 30]


def test_rows_that_the_loop_releases_come_again(client: DataPlaneClient, loader: Loader) -> None:
    fill(client, 2)
    rows = iter(loader(2))
    first = next(rows)
    assert first.release(reason="not good enough") == 2
    (again,) = rows
    assert (again.meta.sample_ids, again.deliveries) == (first.meta.sample_ids, [2, 2])
    assert again.fence > first.fence


def test_a_failing_loop_releases_its_batch_as_failed_and_prefetched_rows_as_undelivered(
    client: DataPlaneClient, loader: Loader
) -> None:
    fill(client, 8)
    failing = loader(2)
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


def test_a_loop_does_not_wait_for_rows_that_its_task_has_given_up(loader: Loader, client: DataPlaneClient) -> None:
    client.register_partition("p", ["tokens", "number", "text"], 2, ["train"], max_deliveries=1)
    client.put_samples(["s0", "s1"], "p", {name: torch.zeros(2) for name in ("tokens", "number", "text")})
    client.claim("p", "train", ["number"], 1).release(reason="it kills every consumer")
    assert [batch.meta.sample_ids for batch in loader(1)] == [["s1"]]
    assert client.partition("p").task("train").dead_rows == 1


def test_a_block_that_ends_without_an_exception_commits_the_current_batch(
    client: DataPlaneClient, loader: Loader
) -> None:
    fill(client, 8)
    with loader(2) as rows:
        for _ in rows:
            break
    assert consumed(client) == 2


def test_a_commit_that_fails_at_the_end_of_a_block_costs_no_other_iteration_its_batch(
    client: DataPlaneClient, loader: Loader
) -> None:
    fill(client, 4)
    with pytest.raises(ClaimFencedError), loader(2, max_batches=1) as rows:  # noqa: PT012  # the end raises
        first, _ = (next(iter(rows)) for _ in range(2))
        client.reset("p", "train", first.meta.sample_ids)
    assert consumed(client) == 2


def test_a_block_keeps_no_iteration_that_has_ended(loader: Loader, client: DataPlaneClient) -> None:
    fill(client, 2)
    ended: list[weakref.ref[object]] = []
    with loader(2) as rows:
        for _ in range(3):
            ended.append(weakref.ref(iterator := iter(rows)))
            assert len(list(iterator)) == 1
            client.reset("p", "train")
        gc.collect()
        assert [one() for one in ended[:-1]] == [None, None]


def test_a_loop_that_is_left_outside_of_a_block_releases_its_rows(loader: Loader, client: DataPlaneClient) -> None:
    fill(client, 8)
    for batch in loader(2):
        at_hand = batch.meta.sample_ids
        break
    assert client.claim("p", "train", [], 8, timeout_s=0).meta.sample_ids[:2] == at_hand


def test_a_loop_that_its_own_thread_collects_releases_prefetched_rows_as_undelivered(
    loader: Loader, client: DataPlaneClient
) -> None:
    fill(client, 4)
    left, collected = threading.Event(), threading.Event()

    def collect(*_: object) -> None:
        if left.is_set() and not collected.is_set() and threading.current_thread().name == "dataplane-loader":
            gc.collect()
            collected.set()

    threading.setprofile(collect)
    try:
        rows = iter(loader(2))
    finally:
        threading.setprofile(None)
    at_hand = next(rows).meta.sample_ids
    eventually(lambda: claimed(client) == 4)
    gc.disable()
    try:
        circle: list[object] = [rows]
        circle.append(circle)
        del rows, circle
        left.set()
        assert collected.wait(200)
    finally:
        gc.enable()
    eventually(lambda: claimed(client) == 0)
    deliveries = {
        sample_id: delivery
        for batch in loader(2)
        for sample_id, delivery in zip(batch.meta.sample_ids, batch.deliveries, strict=True)
    }
    assert deliveries == {f"s{number}": 1 for number in range(4)} | dict.fromkeys(at_hand, 2)


def test_closing_releases_all_uncommitted_rows_at_once(loader: Loader, client: DataPlaneClient) -> None:
    fill(client, 100)
    made = loader(4, client_options={"session_grace_s": 3600.0})
    rows = iter(made)
    used = [next(rows).meta.size for _ in range(3)][:-1]
    made.close()
    assert client.claim("p", "train", [], 100, min_size=100 - sum(used), timeout_s=0).meta.size == 92
    with pytest.raises(ClosedError):
        next(rows)


def test_closing_wakes_a_loop_that_waits(loader: Loader, threads: ThreadPoolExecutor, client: DataPlaneClient) -> None:
    announce(client, 1)
    made = loader(1)
    waiting = threads.submit(next, iter(made))
    eventually(lambda: client.partition("p").task("train").waiting_claims)
    made.close()
    with pytest.raises(ClosedError):
        waiting.result(200)


def test_no_more_than_prefetch_batches_are_claimed_ahead(client: DataPlaneClient, loader: Loader) -> None:
    fill(client, 200)
    rows = iter(loader(4, prefetch=3))
    most = 0
    eventually(lambda: claimed(client) == 12)
    time.sleep(1.0)  # a loader that claims more would do it now
    assert claimed(client) == 12
    for _ in range(3):
        next(rows)
        eventually(lambda: claimed(client) == 12 + 4)
    for _ in rows:
        most = max(most, claimed(client))
    assert 4 <= most <= 12 + 4


def test_a_batch_in_another_process_can_be_read_but_neither_committed_nor_released(
    client: DataPlaneClient, loader: Loader
) -> None:
    fill(client, 2)
    rows = iter(loader(2))
    batch = next(rows)
    twin = copy.deepcopy(batch)
    kept = (batch.meta, batch.claim_id, batch.fence, batch.deliveries)
    assert (twin.meta, twin.claim_id, twin.fence, twin.deliveries) == kept
    assert torch.equal(twin.data["tokens"], batch.data["tokens"])
    with pytest.raises(PreconditionError, match=batch.claim_id):
        twin.commit()
    with pytest.raises(PreconditionError):
        twin.release()
    assert batch.commit() == 2

"""Partitions that clear a row as soon as every task has consumed it, in the turn in which the last one does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import EndRead


@pytest.fixture
def clearing(new_caller: Callable[..., Caller]) -> Caller:
    """Partition p with tasks train and score, rows s1 and s2."""
    caller = new_caller(memory_bytes=256)
    caller.register(tasks=("train", "score"), clear_when_consumed=True, max_deliveries=1)
    caller.put_rows(["s1", "s2"], "a", size=50)
    return caller


def consume(caller: Caller, task: str, batch_size: int = 1) -> None:
    caller.commit(caller.take("a", task=task, batch_size=batch_size).claim_id)


def events(caller: Caller, sample_id: str) -> list[tuple[str, str]]:
    return [(event.what, event.task or event.reason) for event in caller.plane.sample("p", sample_id).events]


def test_a_row_goes_when_the_last_task_consumes_it_and_not_before(clearing: Caller) -> None:
    consume(clearing, "train", 2)
    assert clearing.plane.partition_info("p").rows == 2
    consume(clearing, "score")
    info = clearing.plane.partition_info("p")
    assert (info.rows, info.size_bytes, info.removed_rows["consumed"], clearing.used) == (1, 50, 1, 50)
    assert (clearing.task().consumed_rows, clearing.task().consumed_rows_total) == (1, 2)
    assert events(clearing, "s1") == [
        ("put", ""),
        ("claimed", "train"),
        ("committed", "train"),
        ("claimed", "score"),
        ("committed", "score"),
        ("cleared", "every task has consumed it"),
    ]


def test_a_reader_keeps_the_bytes_and_a_late_one_is_told_where_the_row_is(clearing: Caller) -> None:
    consume(clearing, "train", 2)
    plan = clearing.read(["s1"], "a")
    consume(clearing, "score")
    assert clearing.used == 100
    with clearing.refuses(Reason.SAMPLE_NOT_FOUND, "'s1'", "clears rows as soon as every task has consumed them"):
        clearing.read(["s1"], "a")
    clearing.apply(EndRead(plan.ticket))
    assert clearing.used == 50


def test_a_dead_letter_stays_until_its_task_is_reset_and_consumes_it(clearing: Caller) -> None:
    clearing.release(clearing.take("a").claim_id, reason="bad")
    consume(clearing, "train")
    consume(clearing, "score", 2)
    assert [letter.sample_id for letter in clearing.plane.dead_letters("p", "train")] == ["s1"]
    assert clearing.plane.partition_info("p").rows == 1
    clearing.reset(["s1"])
    consume(clearing, "train")
    assert clearing.plane.partition_info("p").rows == 0

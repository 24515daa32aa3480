"""Every row that was ever put is there, or is gone for a reason that was counted."""

from __future__ import annotations

from tests.core.caller import Caller

REASONS = ("consumed", "cleared", "rolled_back", "retired", "stale", "filtered", "evicted", "lost")


def removed(caller: Caller, partition_id: str = "p") -> dict[str, int]:
    """Why rows are gone, where any are; the counts add up."""
    info = caller.plane.partition_info(partition_id)
    assert info.rows_cleared_total == sum(info.removed_rows.values())
    assert info.rows_put_total == info.rows + info.rows_cleared_total
    return {why: rows for why, rows in info.removed_rows.items() if rows}


def consume(caller: Caller, count: int, *tasks: str) -> None:
    for task in tasks:
        caller.take("a", batch_size=count, task=task, consume=True)


def test_every_reason_is_named_before_a_row_is_gone(caller: Caller) -> None:
    assert caller.plane.partition_info("p").removed_rows == dict.fromkeys(REASONS, 0)


def test_rows_that_every_task_has_consumed_are_removed_as_consumed(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    consume(caller, 2, "train", "score")
    caller.clear()
    assert removed(caller) == {"consumed": 2, "cleared": 1}


def test_rows_of_a_partition_without_tasks_are_removed_as_cleared(caller: Caller) -> None:
    caller.register(tasks=(), partition_id="q")
    caller.put_rows(["s1", "s2"], "a", partition_id="q")
    caller.clear(partition_id="q")
    assert removed(caller, "q") == {"cleared": 2}


def test_more_rows_than_are_cleared_in_one_step_are_counted_by_what_became_of_each(caller: Caller) -> None:
    ids = [f"s{i}" for i in range(40_000)]
    caller.put(caller.put_call(ids, tags=[{}] * len(ids)))
    for task in ("train", "score"):
        caller.take(batch_size=30_000, task=task, consume=True)
    caller.clear(ids)
    assert removed(caller) == {"consumed": 30_000, "cleared": 10_000}

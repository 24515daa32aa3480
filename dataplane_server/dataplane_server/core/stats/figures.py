"""Figures: per-partition and per-task metrics as columns, cached until the partition or the task changes.

They are the facts of `PartitionInfo` and `TaskInfo`, without definitions. A server with a thousand partitions is
scraped four times a minute, and most partitions have not changed in between. So each partition and task keeps its last
figures, with points in time in place of ages, until it changes; `core.turn` drops them then. `check_invariants`
compares cached with computed figures. None means that the figure does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.task_rows import oldest_untaken
from dataplane_server.core.tasks.task import Task

Column = Sequence[float | None]


class PartitionFigures(NamedTuple):
    """The figures of a partition. Ages are in seconds at the time of the query."""

    rows: int
    size_bytes: int
    oldest_row_age_s: float | None
    newest_weight_version: int | None
    weight_version: int | None
    open_groups: int
    rows_put: int
    removed_consumed: int
    removed_cleared: int
    removed_rolled_back: int
    removed_retired: int
    removed_stale: int
    removed_evicted: int
    removed_filtered: int
    removed_lost: int
    removed_failed: int
    puts: int
    put_rows: int
    put_bytes: int
    deduplicated_bytes: int
    reads: int
    read_rows: int
    read_bytes: int
    clears: int
    groups_committed: int
    groups_partial: int
    groups_aborted: int
    groups_late: int


class TaskFigures(NamedTuple):
    """The figures of a task: rows by state, waits and ages in seconds at the time of the query, totals, deliveries by
    how they ended, and seconds by state of the task.
    """

    untaken: int
    claimed: int
    consumed: int
    delayed: int
    dead: int
    ready: int | None
    oldest_untaken_age_s: float | None
    weight_version_lag: int | None
    waiting_claims: int
    longest_wait_s: float
    claims: int
    claim_wait_s: float
    commits: int
    commit_bytes: int
    rows_consumed: int
    deliveries: int
    versioned: int
    versions_behind: int
    ended_committed: int
    ended_released: int
    ended_expired: int
    ended_reset: int
    ended_cleared: int
    ended_abandoned: int
    idle_s: float
    serving_s: float
    waiting_s: float
    waiting_for_consumers_s: float


_ROW_AGE = PartitionFigures._fields.index("oldest_row_age_s")
_UNTAKEN_AGE = TaskFigures._fields.index("oldest_untaken_age_s")
_WAIT = TaskFigures._fields.index("longest_wait_s")
_IDLE = TaskFigures._fields.index("idle_s")


def partition_columns(partitions: Iterable[Partition], now: float) -> list[Column]:
    """A column for each field of PartitionFigures, an entry for each partition."""
    partitions = list(partitions)
    columns = _columns([_cached_figures(partition) for partition in partitions], len(PartitionFigures._fields))
    columns[_ROW_AGE] = _ages(partitions, columns[_ROW_AGE], now)
    return columns


def task_columns(partitions: Iterable[Partition], now: float) -> list[Column]:
    """A column for each field of TaskFigures, an entry for each task of each partition."""
    tasks = [(partition, task) for partition in partitions for task in partition.tasks.values()]
    *columns, states, since = _columns(
        [_cached_task_figures(partition, task) for partition, task in tasks], len(TaskFigures._fields) + 2
    )
    columns[_UNTAKEN_AGE] = _ages([partition for partition, _ in tasks], columns[_UNTAKEN_AGE], now)
    columns[_WAIT] = [0.0 if began is None else max(now - began, 0.0) for began in columns[_WAIT]]
    seconds = [[entered or 0.0 for entered in column] for column in columns[_IDLE:]]
    for entry, (state, began) in enumerate(zip(states, since, strict=True)):
        if began is not None:
            seconds[int(state or 0)][entry] += max(now - began, 0.0)
    columns[_IDLE:] = seconds
    return columns


def _ages(partitions: Sequence[Partition], generations: Column, now: float) -> Column:
    return partitions[0].generations.ages(generations, now) if partitions else generations


def _cached_figures(partition: Partition) -> tuple[float | None, ...]:
    if partition.figures is None:
        partition.figures = compute_figures(partition)
    return partition.figures


def _cached_task_figures(partition: Partition, task: Task) -> tuple[float | None, ...]:
    if task.figures is None:
        task.figures = compute_task_figures(partition, task)
    return task.figures


def _columns(rows: Sequence[tuple[float | None, ...]], count: int) -> list[Column]:
    return list(zip(*rows, strict=True)) if rows else [()] * count


def compute_figures(partition: Partition) -> tuple[float | None, ...]:
    """The figures of a partition, with the generation of the oldest row in place of its age."""
    removed, counters = partition.removed, partition.counters
    return (
        len(partition.rows),
        partition.size_bytes,
        partition.rows.oldest_generation,
        partition.rows.newest_weight_version,
        partition.rows.weight_version,
        len(partition.groups.reserved),
        partition.rows_put_total,
        removed["consumed"],
        removed["cleared"],
        removed["rolled_back"],
        removed["retired"],
        removed["stale"],
        removed["evicted"],
        removed["filtered"],
        removed["lost"],
        removed["failed"],
        counters.puts,
        counters.put_rows,
        counters.put_bytes,
        counters.deduplicated_bytes,
        counters.reads,
        counters.read_rows,
        counters.read_bytes,
        counters.clears,
        counters.groups_committed,
        counters.groups_partial,
        counters.groups_aborted,
        counters.groups_late,
    )


def compute_task_figures(partition: Partition, task: Task) -> tuple[float | None, ...]:
    """The figures of a task, with a generation and a point in time in place of age and wait. The seconds by state end
    when the task entered its state; the number of that state and when it began follow.
    """
    counters, ended, clock = task.counters, task.deliveries.ended, task.clock
    oldest, version = oldest_untaken(partition, task)
    return (
        *task.counts(),
        task.views.ready_rows(),
        oldest,
        partition.rows.lag_of(version),
        task.views.waiting(),
        task.views.waits_since(),
        counters.claims,
        counters.claim_wait_s,
        counters.commits,
        counters.commit_bytes,
        task.consumed_total,
        task.deliveries.total,
        counters.versioned,
        counters.versions_behind,
        ended.get("committed", 0),
        ended.get("released", 0),
        ended.get("expired", 0),
        ended.get("reset", 0),
        ended.get("cleared", 0),
        ended.get("abandoned", 0),
        *clock.entered,
        clock.state_number,
        clock.since,
    )

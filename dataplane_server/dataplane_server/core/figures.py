"""Partitions and tasks as columns of numbers, for whoever looks at all of them at once and often.

The same facts as `PartitionInfo` and `TaskInfo` tell, without the definitions. A server of a thousand partitions is
looked at four times a minute and most of them have not changed meanwhile, so each keeps its *look*: its figures as they
were worked out last, with points in time in place of ages. Whatever changes a figure forgets the look; that nothing is
left out is checked whenever the invariants are. None stands where there is nothing to tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dataplane_server.core.births import Births
from dataplane_server.core.partition import Partition
from dataplane_server.core.tasks import Task

Column = Sequence[float | None]


class PartitionFigures(NamedTuple):
    """Ages in seconds at the time of the look."""

    rows: int
    size_bytes: int
    oldest_row_age_s: float | None
    newest_weight_version: int | None
    open_groups: int
    rows_put: int
    removed_consumed: int
    removed_cleared: int
    removed_rolled_back: int
    puts: int
    put_rows: int
    put_bytes: int
    reads: int
    read_rows: int
    read_bytes: int
    clears: int


class TaskFigures(NamedTuple):
    """Rows by state, waits and ages in seconds at the time of the look, totals, deliveries by how they ended, seconds
    by state of the task.
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
    ended_committed: int
    ended_released: int
    ended_expired: int
    ended_reset: int
    ended_cleared: int
    ended_abandoned: int
    idle_s: float
    serving_s: float
    waiting_for_producers_s: float
    waiting_for_consumers_s: float
    waiting_by_policy_s: float


_ROW_AGE = PartitionFigures._fields.index("oldest_row_age_s")
_UNTAKEN_AGE = TaskFigures._fields.index("oldest_untaken_age_s")
_WAIT = TaskFigures._fields.index("longest_wait_s")
_IDLE = TaskFigures._fields.index("idle_s")


def partition_columns(partitions: Iterable[Partition], births: Births, now: float) -> list[Column]:
    """A column for each field of PartitionFigures, an entry for each partition."""
    looks = [partition.look or look_at_partition(partition) for partition in partitions]
    columns = _columns(looks, len(PartitionFigures._fields))
    columns[_ROW_AGE] = births.ages(columns[_ROW_AGE], now)
    return columns


def task_columns(partitions: Iterable[Partition], births: Births, now: float) -> list[Column]:
    """A column for each field of TaskFigures, an entry for each task of each partition."""
    looks = [task.look or look_at_task(p, task) for p in partitions for task in p.tasks.values()]
    *columns, states, since = _columns(looks, len(TaskFigures._fields) + 2)
    columns[_UNTAKEN_AGE] = births.ages(columns[_UNTAKEN_AGE], now)
    columns[_WAIT] = [0.0 if began is None else max(now - began, 0.0) for began in columns[_WAIT]]
    seconds = [[entered or 0.0 for entered in column] for column in columns[_IDLE:]]
    for entry, (state, began) in enumerate(zip(states, since, strict=True)):
        if began is not None:
            seconds[int(state or 0)][entry] += max(now - began, 0.0)
    columns[_IDLE:] = seconds
    return columns


def _columns(looks: Sequence[tuple[float | None, ...]], count: int) -> list[Column]:
    return list(zip(*looks, strict=True)) if looks else [()] * count


def look_at_partition(partition: Partition) -> tuple[float | None, ...]:
    """The figures of a partition, which keeps them; the birth of the oldest row in place of its age."""
    removed, flow = partition.removed, partition.flow
    partition.look = (
        len(partition.rows),
        partition.size_bytes,
        partition.rows.oldest_birth,
        partition.rows.newest_weight_version,
        len(partition.groups.reserved),
        partition.rows_put_total,
        removed["consumed"],
        removed["cleared"],
        removed["rolled_back"],
        flow.puts,
        flow.put_rows,
        flow.put_bytes,
        flow.reads,
        flow.read_rows,
        flow.read_bytes,
        flow.clears,
    )
    return partition.look


def look_at_task(partition: Partition, task: Task) -> tuple[float | None, ...]:
    """The figures of a task, which keeps them; a birth and a point in time in place of age and wait, the seconds until
    the task entered its state, and behind them which state that is and since when.
    """
    flow, ended, clock = task.flow, task.deliveries.ended, task.clock
    task.look = (
        *task.counts(),
        task.ready_rows(),
        task.backlog.oldest_birth,
        partition.weight_version_lag(task),
        task.waiting(),
        task.waits_since(),
        flow.claims,
        flow.claim_wait_s,
        flow.commits,
        flow.commit_bytes,
        task.consumed_total,
        task.deliveries.total,
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
    return task.look

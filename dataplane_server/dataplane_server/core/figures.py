"""A partition and its tasks as rows of numbers, for whoever looks at all of them at once and often.

The same facts as `PartitionInfo` and `TaskInfo` tell, without the definitions and in one flat tuple each, which costs a
few microseconds: a server of a thousand partitions is looked at four times a minute. None where there is nothing to
tell. The named tuples tell what is where; the functions make plain ones, which take less time.
"""

from __future__ import annotations

from typing import NamedTuple

from dataplane_server.core.partition import Partition
from dataplane_server.core.tasks import Task

Figures = tuple[float | None, ...]


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


def partition_figures(partition: Partition, now: float) -> Figures:
    """As PartitionFigures."""
    removed, flow = partition.removed, partition.flow
    return (
        len(partition.rows),
        partition.size_bytes,
        partition.oldest_row_age_s(now),
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


def task_figures(partition: Partition, task: Task, now: float) -> Figures:
    """As TaskFigures."""
    flow, ended, since = task.flow, task.deliveries.ended, task.waits_since()
    return (
        *task.counts(),
        task.ready_rows(),
        partition.oldest_untaken_age_s(task, now),
        partition.weight_version_lag(task),
        task.waiting(),
        0.0 if since is None else max(now - since, 0.0),
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
        *task.clock.seconds(now).values(),
    )

"""What moves: the differences between two looks at a server, by the time between them.

A rate is None where there is nothing to compare with: at the first look, after the server was started anew (it has not
been up for as long as has passed), for a partition that is new, or was registered anew so that its counters went back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dataplane_client.descriptions import PartitionDescription, ServerStatus, TaskStatus

_UPTIME_SLACK_S = 1.0
"""By how much the two clocks and the length of a call may differ."""


@dataclass(frozen=True)
class Look:
    """What a server said at a time, in seconds of a monotonic clock."""

    at_s: float
    status: ServerStatus
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True)
class PartitionFlow:
    """A partition and what moves in it, a second. consumed_rows_per_s: by task; None there, too, where not known."""

    partition: PartitionDescription
    put_rows_per_s: float | None
    written_bytes_per_s: float | None
    read_bytes_per_s: float | None
    consumed_rows_per_s: Mapping[str, float | None]


def flows(before: Look | None, now: Look) -> list[PartitionFlow]:
    """Of each partition that is there now."""
    if before is None or _is_restarted(before, now):
        return [_flow(None, partition, 0.0) for partition in now.partitions]
    elapsed_s = now.at_s - before.at_s
    known = {partition.partition_id: partition for partition in before.partitions}
    return [_flow(known.get(partition.partition_id), partition, elapsed_s) for partition in now.partitions]


def _is_restarted(before: Look, now: Look) -> bool:
    return now.status.uptime_s + _UPTIME_SLACK_S < before.status.uptime_s + (now.at_s - before.at_s)


def _flow(before: PartitionDescription | None, now: PartitionDescription, elapsed_s: float) -> PartitionFlow:
    if before is not None and _has_gone_back(before, now):
        before = None
    if before is None or elapsed_s <= 0:
        return PartitionFlow(now, None, None, None, {task.task: None for task in now.tasks})
    tasks = {task.task: task for task in before.tasks}
    return PartitionFlow(
        now,
        (now.rows_put_total - before.rows_put_total) / elapsed_s,
        (now.written_bytes_total - before.written_bytes_total) / elapsed_s,
        (now.read_bytes_total - before.read_bytes_total) / elapsed_s,
        {task.task: _consumed(tasks.get(task.task), task, elapsed_s) for task in now.tasks},
    )


def _consumed(before: TaskStatus | None, now: TaskStatus, elapsed_s: float) -> float | None:
    if before is None or now.consumed_rows_total < before.consumed_rows_total:
        return None
    return (now.consumed_rows_total - before.consumed_rows_total) / elapsed_s


def _has_gone_back(before: PartitionDescription, now: PartitionDescription) -> bool:
    return (
        now.rows_put_total < before.rows_put_total
        or now.written_bytes_total < before.written_bytes_total
        or now.read_bytes_total < before.read_bytes_total
    )

"""Rates of a server's counters between two snapshots.

If there is nothing to compare with, rates are those that the server tells of the last minute, and None before it does:
in the first snapshot, after a restart of the server (its uptime is shorter than the time between the snapshots allows),
and for a partition that is new or was replaced, so that its counters went back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dataplane_client.records.descriptions import PartitionDescription, ServerStatus, TaskStatus

_UPTIME_SLACK_S = 1.0
"""Allowed difference between the two clocks, including the duration of a call."""


@dataclass(frozen=True)
class Snapshot:
    """What a server reported at a time, in seconds of a monotonic clock."""

    at_s: float
    status: ServerStatus
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True)
class PartitionRates:
    """A partition and its rates a second. consumed_rows_per_s: by task."""

    partition: PartitionDescription
    put_rows_per_s: float | None
    written_bytes_per_s: float | None
    read_bytes_per_s: float | None
    consumed_rows_per_s: Mapping[str, float | None]


def compute_rates(before: Snapshot | None, now: Snapshot) -> list[PartitionRates]:
    """The rates of each partition of the later snapshot."""
    if before is None or _is_restarted(before, now):
        return [_partition_rates(None, partition, 0.0) for partition in now.partitions]
    elapsed_s = now.at_s - before.at_s
    known = {partition.partition_id: partition for partition in before.partitions}
    return [_partition_rates(known.get(partition.partition_id), partition, elapsed_s) for partition in now.partitions]


def _is_restarted(before: Snapshot, now: Snapshot) -> bool:
    return now.status.uptime_s + _UPTIME_SLACK_S < before.status.uptime_s + (now.at_s - before.at_s)


def _partition_rates(
    before: PartitionDescription | None, now: PartitionDescription, elapsed_s: float
) -> PartitionRates:
    if before is not None and _has_gone_back(before, now):
        before = None
    if before is None or elapsed_s <= 0:
        return _recent_rates(now)
    tasks = {task.task: task for task in before.tasks}
    return PartitionRates(
        now,
        (now.rows_put_total - before.rows_put_total) / elapsed_s,
        (now.written_bytes_total - before.written_bytes_total) / elapsed_s,
        (now.read_bytes_total - before.read_bytes_total) / elapsed_s,
        {task.task: _consumed_rate(tasks.get(task.task), task, elapsed_s) for task in now.tasks},
    )


def _recent_rates(now: PartitionDescription) -> PartitionRates:
    consumed, flow = {task.task: recent_consumed_per_s(task) for task in now.tasks}, now.recent
    if flow is None or not flow.period_s:
        return PartitionRates(now, None, None, None, consumed)
    put, written, read = (count / flow.period_s for count in (flow.rows_put, flow.written_bytes, flow.read_bytes))
    return PartitionRates(now, put, written, read, consumed)


def recent_consumed_per_s(task: TaskStatus) -> float | None:
    """Rows a second of the last minute."""
    recent = task.recent
    return None if recent is None or not recent.period_s else recent.consumed_rows / recent.period_s


def _consumed_rate(before: TaskStatus | None, now: TaskStatus, elapsed_s: float) -> float | None:
    if before is None or now.consumed_rows_total < before.consumed_rows_total:
        return None
    return (now.consumed_rows_total - before.consumed_rows_total) / elapsed_s


def _has_gone_back(before: PartitionDescription, now: PartitionDescription) -> bool:
    return (
        now.rows_put_total < before.rows_put_total
        or now.written_bytes_total < before.written_bytes_total
        or now.read_bytes_total < before.read_bytes_total
    )

"""Descriptions of partitions and tasks, as queries and RegisterPartition return them."""

from __future__ import annotations

from dataplane_server.core.calls.answers import FieldInfo, PartitionInfo, TaskInfo
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.room import why_waiting
from dataplane_server.core.state.task_rows import excluded_rows, oldest_untaken, stale_rows


def describe_partition(partition: Partition, now: float) -> PartitionInfo:
    """The definition, state and totals of a partition. now: the time until which times are counted."""
    counters, fields = partition.counters, partition.fields.values()
    commit_bytes = sum(task.counters.commit_bytes for task in partition.tasks.values())
    return PartitionInfo(
        definition=partition.definition,
        fields=tuple(FieldInfo(f.name, f.shape, f.per_token, f.rows, f.size_bytes) for f in fields),
        tasks=tuple(describe_task(partition, name, now) for name in partition.tasks),
        rows=len(partition.rows),
        size_bytes=partition.size_bytes,
        rows_put_total=partition.rows_put_total,
        rows_cleared_total=sum(partition.removed.values()),
        removed_rows=dict(partition.removed),
        open_groups=len(partition.groups.reserved),
        oldest_row_age_s=_age_s(partition, partition.rows.oldest_generation, now),
        newest_weight_version=partition.rows.newest_weight_version,
        written_bytes_total=counters.put_bytes + commit_bytes,
        read_bytes_total=counters.read_bytes,
        read_rows_total=counters.read_rows,
        closed=partition.rows.closed,
        weight_version=partition.rows.weight_version,
        flow=partition.entrance.policy,
        waiting_calls=len(partition.entrance.waiting) + len(partition.entrance.draws),
        waits_because=why_waiting(partition),
        deduplicated_bytes_total=counters.deduplicated_bytes,
    )


def describe_task(partition: Partition, name: str, now: float) -> TaskInfo:
    """The state and totals of a task. Refusal TASK_NOT_REGISTERED."""
    task = partition.task(name)
    oldest, version = oldest_untaken(partition, task)
    since = task.views.waits_since()
    untaken, claimed, consumed, delayed, dead = task.counts()
    return TaskInfo(
        task=name,
        untaken_rows=untaken,
        claimed_rows=claimed,
        consumed_rows=consumed,
        consumed_rows_total=task.consumed_total,
        waiting_claims=task.views.waiting(),
        delayed_rows=delayed,
        dead_rows=dead,
        delivered_rows_total=task.deliveries.total,
        ended_deliveries=dict(task.deliveries.ended),
        state_seconds=task.clock.seconds(now),
        ready_rows=task.views.ready_rows(),
        oldest_untaken_age_s=_age_s(partition, oldest, now),
        weight_version_lag=partition.rows.lag_of(version),
        longest_wait_s=None if since is None else max(now - since, 0.0),
        claims_total=task.counters.claims,
        stale_rows=stale_rows(partition, task),
        policy=task.policy,
        excluded_rows=excluded_rows(partition, task),
        newest_step=task.newest_step,
        next_step=task.next_step,
    )


def _age_s(partition: Partition, generation: int | None, now: float) -> float | None:
    return None if generation is None else partition.generations.age(generation, now)

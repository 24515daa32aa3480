"""The story of one sample: what it holds, where it stands with every task, and what happened to it."""

from __future__ import annotations

from collections.abc import Callable

from dataplane_server.core.calls import ResidentSample, SampleStory, SampleTask
from dataplane_server.core.journal import Journal
from dataplane_server.core.partition import Partition
from dataplane_server.core.rows import Slots
from dataplane_server.core.tasks import Task

ClaimOf = Callable[[str, int], str]
"""The open claim that holds a slot for a task; empty when there is none."""


def story(partition: Partition, sample_id: str, claim_of: ClaimOf, journal: Journal) -> SampleStory:
    """Of a sample that is there, one that is gone, or one that never was (whose story is empty)."""
    slots = partition.rows.find_existing([sample_id])
    resident = _resident(partition, slots, claim_of) if slots[0] >= 0 else None
    return SampleStory(resident, journal.story(partition.partition_id, sample_id))


def _resident(partition: Partition, slots: Slots, claim_of: ClaimOf) -> ResidentSample:
    rows, slot = partition.rows, int(slots[0])
    return ResidentSample(
        generation=int(rows.generations(slots)[0]),
        sequence_length=int(rows["sequence_length"][slot]),
        fields=tuple(field.name for field in partition.fields.values() if field.holds(slots)[0]),
        tags=rows.tags(slot),
        group_id=partition.groups.id_of(slot),
        hidden=bool(rows["hidden"][slot]),
        tasks=tuple(_standing(task, slots, claim_of) for task in partition.tasks.values()),
    )


def _standing(task: Task, slots: Slots, claim_of: ClaimOf) -> SampleTask:
    slot = int(slots[0])
    deliveries = int(task.deliveries.counts(slots)[0])
    return SampleTask(task.name, task.state_of(slot), deliveries, claim_of(task.name, slot))

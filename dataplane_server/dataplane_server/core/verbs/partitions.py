"""Partitions: registered, extended, closed, cleared, reset and dropped.

A reset ends every claim and step that holds any of the rows as a whole, and all rows that these held return to the
queue: a claim on half of its rows would surprise its holder. Rows return first in the queue, in order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from dataplane_server.core.calls.answers import (
    ClearResult,
    DropResult,
    PartitionInfo,
    Registered,
    ResetResult,
)
from dataplane_server.core.calls.definitions import merged, with_fields_of
from dataplane_server.core.calls.filters import check_filter
from dataplane_server.core.calls.names import check_definition, check_generations, check_sample_ids
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import (
    ClearSamples,
    ClosePartition,
    DropPartition,
    ExtendPartition,
    RegisterPartition,
    ResetTask,
)
from dataplane_server.core.calls.values import Definition, Slots
from dataplane_server.core.rows.fields import check_may_replace
from dataplane_server.core.rows.matching import check_sees_tags, fitting
from dataplane_server.core.state.descriptions import describe_partition
from dataplane_server.core.state.partition import Partition, definition_bytes
from dataplane_server.core.state.state import PARTITION_DROPPED, Fact, State
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import CLAIMED, CONSUMED, DELAYED, UNTAKEN
from dataplane_server.core.verbs.claim_queue import ClaimQueue
from dataplane_server.core.verbs.claims import Claims
from dataplane_server.core.verbs.steps import Steps
from dataplane_server.core.verbs.writes import Writes


class Partitions:
    """Changes partitions as a whole, or rows by name."""

    def __init__(self, state: State, queue: ClaimQueue, claims: Claims, steps: Steps, writes: Writes) -> None:
        self._state = state
        self._queue = queue
        self._claims = claims
        self._steps = steps
        self._writes = writes

    def register(self, call: RegisterPartition, now: float) -> Registered:
        check_definition(call.definition, self._state.limits)
        partition = self._state.partitions.get(call.definition.partition_id)
        if partition is None:
            return Registered(describe_partition(self._create(call.definition), now), "created")
        if call.replace:
            self._replace(partition, call.definition)
            return Registered(describe_partition(partition, now), "replaced")
        extended = self._extend(partition, call.definition)
        return Registered(describe_partition(partition, now), "extended" if extended else "unchanged")

    def extend(self, call: ExtendPartition, now: float) -> PartitionInfo:
        partition = self._state.partition(call.partition_id)
        held = partition.definition
        wanted = replace(
            held,
            fields=call.fields,
            tasks=call.tasks,
            num_samples=call.num_samples,
            per_token_fields=call.per_token_fields,
            open=True,  # or it would need a field
            clear_when_consumed=False,  # or a task
            dtypes={},  # or the fields that they are of
        )
        check_definition(wanted, self._state.limits)
        self._extend(partition, replace(wanted, open=held.open, clear_when_consumed=held.clear_when_consumed))
        return describe_partition(partition, now)

    def close(self, call: ClosePartition) -> Iterable[Task]:
        """Returns the tasks that no new rows will come for."""
        partition = self._state.partition(call.partition_id)
        partition.close()
        return partition.tasks.values()

    def clear_consumed(self, partition: Partition, slots: Slots) -> None:
        """Remove those of the rows that every task has consumed."""
        by_each = [task.states[slots] == CONSUMED for task in partition.tasks.values()]
        gone: Slots = slots[np.logical_and.reduce(by_each)]
        if len(gone):
            ids = partition.rows.ids(gone)
            self._state.report(Fact("cleared", partition.partition_id, ids, reason="every task has consumed it"))
            partition.clear(gone)

    def _extend(self, partition: Partition, wanted: Definition) -> bool:
        """Declare what is wanted beyond the definition. Returns whether there is anything."""
        definition = merged(partition.definition, wanted)
        check_definition(definition, self._state.limits)
        if definition == partition.definition:
            return False
        self._state.bookkeeping.check(partition.growth_bytes(definition))
        _check_may_replace(partition, definition)
        partition.extend(definition)
        return True

    def _replace(self, partition: Partition, definition: Definition) -> None:
        if definition.open:
            definition = with_fields_of(partition.definition, definition)
            check_definition(definition, self._state.limits)
        self._state.bookkeeping.check(partition.growth_bytes(definition))
        _check_may_replace(partition, definition)
        self._claims.void(partition)
        self._steps.forget(partition)
        partition.redefine(definition)
        self._state.report(Fact("reset", partition.partition_id, None, reason="the definition was replaced"))
        self._queue.fail_orphans(partition.partition_id)

    def _create(self, definition: Definition) -> Partition:
        state, limit = self._state, self._state.limits.max_partitions
        if len(state.partitions) >= limit:
            message = f"the server holds {limit} partitions, which is its limit; drop one first"
            raise Refusal(Reason.LIMIT_REACHED, message, max_partitions=limit)
        state.bookkeeping.check(definition_bytes(definition))
        changes = state.changes
        shared = (state.space, state.generations, state.bookkeeping)
        partition = Partition(definition, *shared, changes.partitions, changes.tasks)
        state.partitions[definition.partition_id] = partition
        return partition

    def drop(self, call: DropPartition) -> DropResult:
        partition = self._state.partitions.get(call.partition_id)
        if partition is None:
            return DropResult(0)
        dropped = len(partition.rows)
        self._claims.void(partition)
        self._steps.forget(partition)
        partition.clear(partition.rows.all_slots())
        for group in list(partition.groups.reserved.values()):  # those without rows
            partition.roll_back(group)
        self._state.report(Fact("cleared", call.partition_id, None, reason=PARTITION_DROPPED))
        partition.rows.close()
        del self._state.partitions[call.partition_id]
        gone = Refusal(
            Reason.PARTITION_NOT_FOUND, f"partition {call.partition_id!r} was dropped", partition_id=call.partition_id
        )
        self._queue.fail_waiting_on(call.partition_id, gone)
        self._writes.fail_waiting_on(call.partition_id, gone)
        return DropResult(dropped)

    def clear(self, call: ClearSamples, now: float) -> ClearResult:
        partition = self._state.partition(call.partition_id)
        check_filter(call.where, with_age=True)
        if call.sample_ids is None:
            slots = partition.rows.all_slots()
        else:
            check_sample_ids(call.sample_ids, self._state.limits)
            check_generations(call.sample_ids, call.generations)
            slots = partition.find_same(call.sample_ids, call.generations)
        if call.where:
            check_sees_tags(partition.rows, partition.definition.fields, call.where)
            slots = slots[fitting(partition.rows, call.where, slots, now)]
        ids = None if call.sample_ids is None and not call.where else partition.rows.ids(slots)
        self._state.report(Fact("cleared", call.partition_id, ids))
        partition.count_clear()
        return ClearResult(len(slots), partition.clear(slots))

    def reset(self, call: ResetTask) -> ResetResult:
        partition = self._state.partition(call.partition_id)
        task, rows = partition.task(call.task), partition.rows
        slots = None
        if call.sample_ids is not None:
            check_sample_ids(call.sample_ids, self._state.limits)
            found = rows.find_existing(call.sample_ids)
            slots = found[found >= 0]
        reach, fenced = self._end_holders(partition, task, slots)
        taken = reach[task.states[reach] != UNTAKEN]
        task.deliveries.forget(rows.all_slots() if slots is None else slots)
        task.restore(taken)
        ids = None if slots is None else rows.ids(taken)
        self._state.report(Fact("reset", call.partition_id, ids, task=call.task))
        return ResetResult(len(taken), fenced)

    def _end_holders(self, partition: Partition, task: Task, slots: Slots | None) -> tuple[Slots, int]:
        """End the steps and claims of a task that hold any of the rows (None: all). Returns the rows and all that these
        held, in order of arrival, and the number of claims.
        """
        rows = partition.rows
        of_steps = self._steps.forget(partition, task.name, slots)
        of_steps = of_steps[np.isin(task.states[of_steps], (CLAIMED, DELAYED))]
        reach = np.concatenate([rows.all_slots() if slots is None else slots, of_steps])
        held, fenced = self._claims.fence(partition, task.name, None if slots is None else reach)
        reach = np.unique(np.concatenate([reach, held]))
        return reach[np.argsort(rows.generations(reach))], fenced


def _check_may_replace(partition: Partition, definition: Definition) -> None:
    reserved = partition.groups.reserved.values()
    digests = partition.definition.digests
    check_may_replace(partition.partition_id, partition.fields, reserved, definition, digests=digests)

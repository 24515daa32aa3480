"""Weight versions of partitions, and the policies of tasks: how stale rows may be that a task gets, and what they fit.

Which rows are too stale changes when the partition's version changes (the trainer says so, or a row or group names a
greater one), when a policy changes, and when rows come or come back. `follow` runs at the end of each of these turns,
before queued claims are served, so no claim ever gets a row beyond its bound.

A task that drops stale rows, or what its filter excludes, has them removed with the other rows of their group: a
group of which a part is gone is of no use. Rows that a claim of any task holds stay until it has ended; rows of a
reserved group stay until it is finished, and its producer is told of stale ones.

A task with a bound does not get rows of unknown version: delivering them would break the bound, and dropping them would
lose a row for a forgotten tag.
"""

from __future__ import annotations

import numpy as np

from dataplane_server.core.calls.answers import PartitionInfo, Retired
from dataplane_server.core.calls.filters import filter_bytes
from dataplane_server.core.calls.flow import check_flow
from dataplane_server.core.calls.names import UNKNOWN_VERSION, check_weight_version
from dataplane_server.core.calls.policies import check_policy
from dataplane_server.core.calls.refusal import Reason, Refusal, naming
from dataplane_server.core.calls.requests import SetPolicies, SetWeightVersion
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.rows.group_table import Group, with_groups
from dataplane_server.core.state.descriptions import describe_partition
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import Fact, State
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import CLAIMED, UNTAKEN


class Freshness:
    """Sets versions and policies, and carries out what follows from them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._held: dict[Task, tuple[int, Slots]] = {}  # what tasks would drop, and `_ended` when a claim held it

    # -- calls ---------------------------------------------------------------------------------------------------------

    def set_weight_version(self, call: SetWeightVersion) -> Retired:
        partition = self._state.partition(call.partition_id)
        for name, version in (("version", call.version), ("retire_below", call.retire_below)):
            if version is not None:
                check_weight_version(name, version, partition_id=call.partition_id)
        if call.retire_below is not None and call.retire_below > call.version:
            message = (
                f"partition {call.partition_id!r}: retire_below {call.retire_below} is above version {call.version}: "
                "rows of the present weights would be removed; it must be at most the version"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=call.partition_id)
        partition.set_weight_version(call.version)
        return Retired(0, 0) if call.retire_below is None else self._retire(partition, call.retire_below)

    def set_policies(self, call: SetPolicies, now: float) -> PartitionInfo:
        partition, where = self._state.partition(call.partition_id), f"partition {call.partition_id!r}"
        tasks = [partition.task(each.task) for each in call.tasks]
        kept = -sum(filter_bytes(task.policy.where) for task in tasks)
        for each in call.tasks:
            with naming(f"{where}, task {each.task!r}", partition_id=call.partition_id, task=each.task):
                kept += check_policy(each.policy)
        before = partition.entrance.policy
        flow = before if call.flow is None else call.flow
        with naming(where, partition_id=call.partition_id):
            of_flow = check_flow(flow) - filter_bytes(before.evict_where)
        self._state.bookkeeping.check(kept + of_flow, urgent=True)
        for task, each in zip(tasks, call.tasks, strict=True):
            task.follow(each.policy)
        partition.rows.keep(of_flow)
        partition.follow(flow)
        return describe_partition(partition, now)

    def _retire(self, partition: Partition, oldest: int) -> Retired:
        reason, before = f"weight version below {oldest}", len(partition.rows)
        groups = [
            group
            for group in partition.groups.reserved.values()
            if group.start_weight_version is not None and group.start_weight_version < oldest
        ]
        for group in groups:
            self._state.note_ended(group.reservation_id, f"group {group.group_id!r} was retired: {reason}")
            self._remove(partition, partition.groups.members(group.number), "rolled_back", reason)
            if group.reservation_id:  # it never had a row
                partition.roll_back(group)
        slots = partition.rows.all_slots()
        for why, old in partition.by_why(slots[partition.rows["weight_version"][slots] < oldest], "retired"):
            self._remove(partition, old, why, reason)
        return Retired(before - len(partition.rows), len(groups))

    # -- what follows --------------------------------------------------------------------------------------------------

    def follow_version(self, partition: Partition) -> None:
        """A partition has another weight version than its tasks know."""
        partition.followed_version = partition.rows.weight_version
        for task in partition.tasks.values():
            task.begin_version()
            if task.policy.bound is not None or task.moves_with_version:
                task.follow(task.policy)

    def drop_unwanted(self) -> None:
        """Remove those of the tasks' suspects that they drop: first what is stale, then what does not fit a filter."""
        if self._held:
            self._suspect_held()
        suspecting = [task for task in self._state.changes.tasks if task.suspects]
        dropping = [(task, np.unique(np.concatenate(task.suspects))) for task in suspecting]
        for task in suspecting:
            task.suspects = []
        for why in ("stale", "filtered"):
            for task, suspects in dropping:
                partition = self._state.partitions.get(task.partition_id)
                if partition is not None and partition.tasks.get(task.name) is task:
                    self._drop(partition, task, suspects, why)

    def _drop(self, partition: Partition, task: Task, suspects: Slots, why: str) -> None:
        slots = suspects[partition.rows["alive"][suspects]]
        slots = slots[task.states[slots] == UNTAKEN]
        if why == "filtered":
            slots = slots[task.is_rejected(slots)] if task.policy.drops_excluded else slots[:0]
            reason = f"it did not fit the filter of task {task.name!r}"
        else:
            known = partition.rows["weight_version"][slots] != UNKNOWN_VERSION
            slots = slots[task.is_stale(slots) & known] if task.policy.drops_stale else slots[:0]
            reason = f"it was staler than the {task.policy.bound} versions that task {task.name!r} allows"
        if not len(slots):
            return
        self._remove(partition, self._droppable(partition, slots), why, reason)
        held = slots[partition.rows["alive"][slots] & ~partition.rows["hidden"][slots]]
        if len(held):
            _, before = self._held.get(task, (0, held))
            self._held[task] = (_ended(partition), np.union1d(before, held))

    def _suspect_held(self) -> None:
        """Look again at rows that stayed because of a claim, once a delivery in their partition has ended."""
        for task, (ended, slots) in list(self._held.items()):
            partition = self._state.partitions.get(task.partition_id)
            if partition is None or partition.tasks.get(task.name) is not task:
                del self._held[task]
            elif _ended(partition) != ended:
                del self._held[task]
                task.suspect(slots)

    def _droppable(self, partition: Partition, slots: Slots) -> Slots:
        """The rows and those of their groups, without groups that are reserved or of which a claim holds a row."""
        rows = partition.rows
        numbers = rows["group"][slots]
        whole = np.flatnonzero(rows["alive"] & np.isin(rows["group"], numbers[numbers > 0]))
        together = np.concatenate([slots[numbers == 0], whole])
        kept = rows["hidden"][together]
        for task in partition.tasks.values():
            kept |= task.states[together] == CLAIMED
        gone: Slots = together[~with_groups(rows["group"][together], kept)]
        return gone

    def _remove(self, partition: Partition, slots: Slots, why: str, reason: str) -> None:
        if len(slots):
            self._state.report(Fact("cleared", partition.partition_id, partition.rows.ids(slots), reason=reason))
            partition.clear(slots, why)

    # -- reserved groups -----------------------------------------------------------------------------------------------

    def abort_hint(self, partition: Partition, group: Group) -> str:
        """Why rows of a reserved group are too stale for a task already; empty if they are not."""
        current, start = partition.rows.weight_version, group.start_weight_version
        for task in partition.tasks.values() if current is not None and start is not None else ():
            bound, behind = task.policy.bound, (current or 0) - (start or 0)
            if bound is not None and behind > bound:
                return f"weight version {start} is {behind} behind {current}; task {task.name!r} takes at most {bound}"
        return ""


def _ended(partition: Partition) -> int:
    """A number that grows when a delivery of the partition ends."""
    return sum(sum(task.deliveries.ended.values()) for task in partition.tasks.values())

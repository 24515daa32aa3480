"""Weight versions of partitions, and the policies of tasks: how stale rows may be that a task gets.

Which rows are too stale changes when the partition's version changes (the trainer says so, or a row or group names a
greater one), when a policy changes, and when rows come or come back. `follow` runs at the end of each of these turns,
before queued claims are served, so no claim ever gets a row beyond its bound.

A task that drops stale rows has them removed with the other rows of their group: a group of which a part is gone is of
no use. Rows that a claim of any task holds stay until it has ended; rows of a reserved group stay until it is finished,
and its producer is told.
"""

from __future__ import annotations

import numpy as np

from dataplane_server.core.calls.answers import PartitionInfo, Retired
from dataplane_server.core.calls.policies import check_order
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import SetPolicies, SetWeightVersion
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.rows.group_table import Group
from dataplane_server.core.rows.row_table import UNKNOWN_VERSION, WEIGHT_VERSIONS
from dataplane_server.core.state.descriptions import describe_partition
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import Fact, State
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import CLAIMED, UNTAKEN


class Freshness:
    """Sets versions and policies, and carries out what follows from them."""

    def __init__(self, state: State) -> None:
        self._state = state

    # -- calls ---------------------------------------------------------------------------------------------------------

    def set_weight_version(self, call: SetWeightVersion) -> Retired:
        partition = self._state.partition(call.partition_id)
        for name, version in (("version", call.version), ("retire_below", call.retire_below)):
            if version is not None and version not in WEIGHT_VERSIONS:
                message = f"{name} must be 0 to {WEIGHT_VERSIONS.stop - 1}, got {version}"
                raise Refusal(Reason.INVALID_REQUEST, message, partition_id=call.partition_id)
        partition.set_weight_version(call.version)
        return Retired(0, 0) if call.retire_below is None else self._retire(partition, call.retire_below)

    def set_policies(self, call: SetPolicies, now: float) -> PartitionInfo:
        partition = self._state.partition(call.partition_id)
        tasks = [partition.task(each.task) for each in call.tasks]
        for each in call.tasks:
            check_order(each.policy.order, each.policy.order_tag)
        for task, each in zip(tasks, call.tasks, strict=True):
            task.follow(each.policy)
        return describe_partition(partition, now)

    def _retire(self, partition: Partition, oldest: int) -> Retired:
        reason, before = f"weight version below {oldest}", partition.removed["retired"]
        groups = [
            group
            for group in partition.groups.reserved.values()
            if group.start_weight_version is not None and group.start_weight_version < oldest
        ]
        for group in groups:
            self._remove(partition, partition.groups.members(group.number), "retired", reason)
            if group.reservation_id:  # it never had a row
                partition.roll_back(group)
        slots = partition.rows.all_slots()
        self._remove(partition, slots[partition.rows["weight_version"][slots] < oldest], "retired", reason)
        return Retired(partition.removed["retired"] - before, len(groups))

    # -- what follows --------------------------------------------------------------------------------------------------

    def follow_version(self, partition: Partition) -> None:
        """Tell the tasks of a partition if it has another weight version than they know."""
        if partition.followed_version != partition.rows.weight_version:
            partition.followed_version = partition.rows.weight_version
            for task in partition.tasks.values():
                if task.policy.bound is not None or task.moves_with_version:
                    task.follow(task.policy)

    def drop_stale(self, task: Task) -> None:
        """Remove those of a task's suspects that it drops."""
        suspects, task.suspects = np.unique(np.concatenate(task.suspects)), []
        partition = self._state.partitions.get(task.partition_id)
        if partition is None or partition.tasks.get(task.name) is not task:
            return
        slots = suspects[partition.rows["alive"][suspects]]
        slots = slots[task.states[slots] == UNTAKEN]
        slots = slots[task.is_stale(slots) & (partition.rows["weight_version"][slots] != UNKNOWN_VERSION)]
        if not len(slots):
            return
        slots = self._droppable(partition, slots)
        bound = f"it was staler than the {task.policy.bound} versions that task {task.name!r} allows"
        self._remove(partition, slots, "stale", bound)

    def _droppable(self, partition: Partition, slots: Slots) -> Slots:
        """The rows and those of their groups, without groups that are reserved or of which a claim holds a row."""
        rows = partition.rows
        numbers = rows["group"][slots]
        whole = np.flatnonzero(rows["alive"] & np.isin(rows["group"], numbers[numbers > 0]))
        together = np.concatenate([slots[numbers == 0], whole])
        kept = rows["hidden"][together]
        for task in partition.tasks.values():
            kept |= task.states[together] == CLAIMED
        of_groups = rows["group"][together]
        gone: Slots = together[~kept & ~(np.isin(of_groups, of_groups[kept]) & (of_groups > 0))]
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

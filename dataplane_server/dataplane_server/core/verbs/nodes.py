"""Nodes that come and go. A row is on the nodes where its values are, and is lost with any of them that has no mirror.

A lost row is removed, claimed or not: its claim goes on without it, as after a clear. A group of which a row is lost
is of no use, so the others go as well; one that is still reserved is rolled back, and its producer is told when it
finishes the group.
"""

from __future__ import annotations

import numpy as np

from dataplane_server.core.calls.node_calls import AddNode, LoseNode, SetMirror
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array
from dataplane_server.core.rows.group_table import Group, with_groups
from dataplane_server.core.rows.regions import NODE_SHIFT, Mirror, Region, Regions, node_of
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import Fact, State
from dataplane_server.core.verbs.writes import Writes


class Nodes:
    """Adds and loses nodes."""

    def __init__(self, state: State, writes: Writes) -> None:
        self._state = state
        self._writes = writes

    def add(self, call: AddNode) -> int:
        return self._regions.add(call.name, self._state.limits.memory_bytes)

    def lose(self, call: LoseNode) -> int:
        if call.number not in [region.number for region in self._regions if not region.ended]:
            return 0
        gone = Refusal(Reason.NODE_LOST, f"node {call.number} left the cluster", node=call.number)
        self._writes.fail_waiting_for(call.number, gone)
        return self._lose_rows(self._regions.lose(call.number))

    def set_mirror(self, call: SetMirror) -> int:
        gone = self._regions.set_mirror(call.number, Mirror(call.on, call.name))
        return self._lose_rows([call.number] if gone else [])

    def _lose_rows(self, numbers: list[int]) -> int:
        partitions = self._state.partitions.values()
        return sum(_lose_rows(self._state, partition, number) for number in numbers for partition in partitions)

    def mirrors_of(self, number: int) -> tuple[Mirror, ...]:
        """The mirrors of a node that has not ended. Refusal NODE_LOST."""
        return self._regions.placeable(number).mirrors

    def up(self) -> list[Region]:
        """The nodes that are there, or live on in mirrors; none unless this is a cluster."""
        return list(self._regions) if isinstance(self._state.space, Regions) else []

    def versions(self, offsets: Int64Array, sizes: Int64Array) -> Int64Array:
        """For each range of bytes (none empty), a number that grows once a byte of it may have been replaced."""
        found, numbers = np.zeros(len(offsets), np.int64), offsets >> NODE_SHIFT
        for number in np.unique(numbers).tolist():
            here, region = numbers == number, self._regions.region(number)
            starts = offsets[here] - region.base
            found[here] = region.versions(starts, starts + sizes[here])
        return found

    @property
    def _regions(self) -> Regions:
        if not isinstance(self._state.space, Regions):
            raise Refusal(Reason.INVALID_REQUEST, "this server has no nodes: it is no cluster")
        return self._state.space


def _lose_rows(state: State, partition: Partition, number: int) -> int:
    rows, alive, before = partition.rows, partition.rows.all_slots(), len(partition.rows)
    touched = rows.places.touch(alive, number << NODE_SHIFT, number + 1 << NODE_SHIFT)
    lost = alive[with_groups(rows["group"][alive], touched)]
    groups = [group for group in partition.groups.reserved.values() if _is_lost(partition, group, lost, number)]
    reason = f"node {number} left the cluster"
    for group in groups:
        state.note_ended(group.reservation_id, f"group {group.group_id!r} was lost: {reason}")
    for why, slots in partition.by_why(lost, "lost"):
        state.report(Fact(why, partition.partition_id, rows.ids(slots), reason=reason))
        partition.clear(slots, why)
    for group in groups:
        if group.reservation_id:  # rows are left, or it never had one
            partition.roll_back(group)
    return before - len(rows)


def _is_lost(partition: Partition, group: Group, lost: Int64Array, number: int) -> bool:
    """Whether a reserved group has lost a row, or a value that its rows share."""
    shared = any(entries and node_of(offset) == number for offset, entries, _ in group.shared.values())
    return shared or bool(np.isin(partition.groups.members(group.number), lost).any())

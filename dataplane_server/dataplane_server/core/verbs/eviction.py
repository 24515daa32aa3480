"""Eviction: rows make room for new ones, by the rule of the partition's policy.

Rows go with their whole group, never while a claim or a step holds one of them, one is delayed, or their group is
reserved; nor for a put that names one of them, unless that is older than max_versions allows. They go only if together
they make enough room; otherwise none goes, and the new rows wait.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dataplane_server.core.calls.values import BoolArray, Int64Array, Slots
from dataplane_server.core.rows.group_table import with_groups
from dataplane_server.core.rows.matching import fitting
from dataplane_server.core.state.entrance import Entry
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.room import oldest_allowed, over_budget
from dataplane_server.core.state.state import Fact, State
from dataplane_server.core.tasks.task_states import CLAIMED, DELAYED


class _Wanted(NamedTuple):
    """What must go: at least this number of rows and of bytes, and every marked candidate."""

    rows: int
    size_bytes: int
    marked: BoolArray


def evict(state: State, partition: Partition, entry: Entry, now: float) -> bool:
    """Make room for new rows in the budgets, of rows that may go at now. Returns whether there is room now. O(rows)."""
    while over_budget(partition, entry.rows, entry.size_bytes):
        slots = _victims(partition, entry, now)
        if slots is None:
            return False
        what = "arrived first" if partition.entrance.policy.evict_first == "oldest" else "had the oldest weight version"
        ids = partition.rows.ids(slots)
        state.report(Fact("cleared", partition.partition_id, ids, reason=f"evicted for new rows: it {what}"))
        partition.clear(slots, "evicted")
    return True


def _victims(partition: Partition, entry: Entry, now: float) -> Slots | None:
    policy, entrance, rows = partition.entrance.policy, partition.entrance, partition.rows
    slots = rows.all_slots()
    too_old = rows["weight_version"][slots] < oldest_allowed(partition)
    named = np.isin(slots, rows.find_existing(entry.call.sample_ids))
    may_go = _evictable(partition, slots, named & ~too_old, now)
    if (too_old & ~may_go).any():
        return None
    new_rows = entry.rows + np.count_nonzero(named & too_old)  # the put creates again what it names
    slots, too_old = slots[may_go], too_old[may_go]
    more_rows = len(rows) + entrance.coming_rows + new_rows - (policy.max_rows or math.inf)
    more_bytes = partition.size_bytes + entrance.coming_bytes + entry.size_bytes - (policy.max_bytes or math.inf)
    groups = rows["group"][slots].astype(np.int64)
    units: Int64Array = np.where(groups > 0, -groups, slots)
    sizes = np.zeros(len(slots), np.int64)
    if more_bytes > 0 and partition.fields:
        sizes = partition.values.freed_with(units, slots, list(partition.fields.values()))
    order: tuple[Int64Array, ...] = (rows.generations(slots),)
    if policy.evict_first == "oldest_version":
        order = (rows["weight_version"][slots].astype(np.int64), *order)
    wanted = _Wanted(int(max(more_rows, 0)), int(max(more_bytes, 0)), too_old)
    return _first_units(slots, units, order, sizes, wanted)


def _evictable(partition: Partition, slots: Slots, named: BoolArray, now: float) -> BoolArray:
    """Which rows may go, with all rows of their groups. named: those that stay, since the new rows' put names them."""
    rows, where = partition.rows, partition.entrance.policy.evict_where
    kept = rows["hidden"][slots] | named
    for task in partition.tasks.values():
        kept |= np.isin(task.states[slots], (CLAIMED, DELAYED))  # those that are held for a step are delayed
    if where:
        kept |= ~fitting(rows, where, slots, now)
    return ~with_groups(rows["group"][slots], kept)


def _first_units(
    slots: Slots, units: Int64Array, order: tuple[Int64Array, ...], sizes: Int64Array, wanted: _Wanted
) -> Slots | None:
    """The first candidates that are enough, in whole units; None if all are not. units: what each leaves with. order:
    keys, the most significant first; a unit has the least of its rows. sizes: in bytes.
    """
    if not len(slots):
        return None
    found, unit_of = np.unique(units, return_inverse=True)
    count = len(found)
    rows = np.bincount(unit_of, minlength=count)
    size_bytes = np.bincount(unit_of, weights=sizes, minlength=count)
    marked = np.bincount(unit_of, weights=wanted.marked, minlength=count) > 0
    keys = [_least(key, unit_of, count) for key in order]
    first = np.lexsort((*reversed(keys), ~marked))
    enough = np.cumsum(rows[first]) >= wanted.rows
    enough &= np.cumsum(size_bytes[first]) >= wanted.size_bytes
    enough &= np.arange(1, count + 1) >= np.count_nonzero(marked)
    if not enough[-1]:
        return None
    gone = np.zeros(count, np.bool_)
    gone[first[: int(np.argmax(enough)) + 1]] = True
    chosen: Slots = slots[gone[unit_of]]
    return chosen


def _least(key: Int64Array, unit_of: Int64Array, count: int) -> Int64Array:
    """The least key of each unit."""
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, unit_of, key)
    return least

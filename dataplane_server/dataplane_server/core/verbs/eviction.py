"""Eviction: rows make room for new ones, by the rule of the partition's policy.

Rows go with their whole group, never while a claim or a step holds one of them, one is delayed, or their group is
reserved; nor for a put that names one of them, unless that is older than max_versions allows: then the put creates it
again, as a new row. They go only if together they make enough room; otherwise none goes, and the new rows wait.
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
from dataplane_server.core.state.room import oldest_allowed, over_budget, paced
from dataplane_server.core.state.state import Fact, State
from dataplane_server.core.tasks.task_states import CLAIMED, DELAYED


class _Wanted(NamedTuple):
    """What must go: at least this number of rows and of bytes, and every marked candidate."""

    rows: int
    size_bytes: int
    marked: BoolArray


def evict(state: State, partition: Partition, entry: Entry, now: float) -> bool:
    """Make room for new rows in the budgets, of rows that may go at now. Returns whether there is room now. O(rows)."""
    again = _created_again(partition, entry)
    if len(again) and paced(partition, entry.rows, again):
        return False
    while over_budget(partition, entry.rows, entry.size_bytes):
        slots = _victims(partition, entry, len(again), now)
        if slots is None:
            return False
        what = "arrived first" if partition.entrance.policy.evict_first == "oldest" else "had the oldest weight version"
        ids = partition.rows.ids(slots)
        state.report(Fact("cleared", partition.partition_id, ids, reason=f"evicted for new rows: it {what}"))
        partition.clear(slots, "evicted")
    entry.rows += len(again)
    return True


def _created_again(partition: Partition, entry: Entry) -> Slots:
    """The rows that a put names and that are too old to stay."""
    found = partition.rows.find_existing(entry.call.sample_ids)
    found = found[found >= 0]
    return found[partition.rows["weight_version"][found] < oldest_allowed(partition)]


def _victims(partition: Partition, entry: Entry, again: int, now: float) -> Slots | None:
    policy, entrance, rows = partition.entrance.policy, partition.entrance, partition.rows
    slots = rows.all_slots()
    too_old = rows["weight_version"][slots] < oldest_allowed(partition)
    named = np.isin(slots, rows.find_existing(entry.call.sample_ids))
    may_go = _evictable(partition, slots, named & ~too_old, now)
    if (too_old & ~may_go).any():
        return None
    slots, too_old = slots[may_go], too_old[may_go]
    more_rows = len(rows) + entrance.coming_rows + entry.rows + again - (policy.max_rows or math.inf)
    more_bytes = partition.size_bytes + entrance.coming_bytes + entry.size_bytes - (policy.max_bytes or math.inf)
    turns, sizes = _turns(partition, slots, too_old), np.zeros(len(slots), np.int64)
    if more_bytes > 0 and partition.fields:
        last_first = np.argsort(-turns)  # a value that rows share is free with the last of them
        sizes[last_first] = partition.values.freed_with(slots[last_first], list(partition.fields.values()))
    wanted = _Wanted(int(max(more_rows, 0)), int(max(more_bytes, 0)), too_old)
    return _first_units(slots, turns, sizes, wanted)


def _evictable(partition: Partition, slots: Slots, named: BoolArray, now: float) -> BoolArray:
    """Which rows may go, with all rows of their groups. named: those that stay, since the new rows' put names them."""
    rows, where = partition.rows, partition.entrance.policy.evict_where
    kept = rows["hidden"][slots] | named
    for task in partition.tasks.values():
        kept |= np.isin(task.states[slots], (CLAIMED, DELAYED))  # those that are held for a step are delayed
    if where:
        kept |= ~fitting(rows, where, slots, now)
    return ~with_groups(rows["group"][slots], kept)


def _turns(partition: Partition, slots: Slots, marked: BoolArray) -> Int64Array:
    """When each candidate leaves, by the rule of the policy: rows of a group at once, by the least of their keys, and
    those that are marked first.
    """
    rows, groups = partition.rows, partition.rows["group"][slots].astype(np.int64)
    keys: list[Int64Array] = [rows.generations(slots)]
    if partition.entrance.policy.evict_first == "oldest_version":
        keys.append(rows["weight_version"][slots].astype(np.int64))
    found, unit_of = np.unique(np.where(groups > 0, -groups, slots), return_inverse=True)
    keys = [_least(key, unit_of, len(found)) for key in (*keys, (~marked).astype(np.int64))]
    turns = np.empty(len(found), np.int64)
    turns[np.lexsort(keys)] = np.arange(len(found))
    of_rows: Int64Array = turns[unit_of]
    return of_rows


def _first_units(slots: Slots, turns: Int64Array, sizes: Int64Array, wanted: _Wanted) -> Slots | None:
    """The first candidates that are enough, in whole units; None if all are not. turns: when each leaves. sizes: in
    bytes.
    """
    if not len(slots):
        return None
    enough = np.cumsum(np.bincount(turns)) >= wanted.rows
    enough &= np.cumsum(np.bincount(turns, weights=sizes)) >= wanted.size_bytes
    enough &= np.arange(len(enough)) >= turns[wanted.marked].max(initial=-1)
    if not enough[-1]:
        return None
    chosen: Slots = slots[turns <= np.argmax(enough)]
    return chosen


def _least(key: Int64Array, unit_of: Int64Array, count: int) -> Int64Array:
    """The least key of each unit."""
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, unit_of, key)
    return least

"""What the rows of a partition are to one of its tasks: how many it may still get, and which lag behind."""

from __future__ import annotations

import numpy as np

from dataplane_server.core.calls.names import UNKNOWN_VERSION
from dataplane_server.core.calls.values import BatchUnit
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.tasks.eligibility import all_stale
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import CONSUMED, DEAD, UNTAKEN

_NONE = np.iinfo(np.int64).max


def oldest_untaken(partition: Partition, task: Task) -> tuple[int | None, int | None]:
    """The lowest generation and the lowest weight version among untaken rows; None if there is none. O(rows)."""
    rows = partition.rows
    untaken = task.states == UNTAKEN
    untaken &= rows["alive"]
    generation = int(np.minimum.reduce(rows["generation"], where=untaken, initial=_NONE))
    version = UNKNOWN_VERSION
    if rows.newest_weight_version is not None:
        version = int(np.minimum.reduce(rows["weight_version"], where=untaken, initial=UNKNOWN_VERSION))
    return None if generation == _NONE else generation, None if version == UNKNOWN_VERSION else version


def stale_rows(partition: Partition, task: Task) -> int:
    """Untaken rows that are stale. Costs O(rows) if there is a bound."""
    if task.policy.bound is None:
        return 0
    return int(np.count_nonzero(all_stale(partition.rows, task.policy) & (task.states == UNTAKEN)))


def excluded_rows(partition: Partition, task: Task) -> int:
    """Untaken rows that are rejected and not stale. Costs O(rows) if the policy has a filter."""
    if not task.policy.where:
        return 0
    slots = np.flatnonzero(partition.rows["alive"] & (task.states == UNTAKEN))
    return int(np.count_nonzero(task.is_rejected(slots) & ~task.is_stale(slots)))


def rows_left(partition: Partition, task: Task, whole_groups: bool, unit: BatchUnit) -> int:
    """How many rows the task may still get: they are neither consumed nor dead, nor untaken and stale or rejected.
    whole_groups: how many groups of such rows only, or how many rows of such groups; a row outside of groups counts as
    a group. In O(rows) for whole groups, and if there is a bound or filter.
    """
    if not whole_groups:
        untaken, claimed, _, delayed, _ = task.counts()
        return untaken + claimed + delayed - stale_rows(partition, task) - excluded_rows(partition, task)
    slots = partition.rows.all_slots()
    gone = np.isin(task.states[slots], (CONSUMED, DEAD))
    gone |= (task.states[slots] == UNTAKEN) & (task.is_stale(slots) | task.is_rejected(slots))
    numbers = partition.rows["group"][slots]
    broken = np.unique(numbers[gone & (numbers > 0)])
    alone = int(np.count_nonzero(~gone & (numbers == 0)))
    if unit == "rows":
        return alone + int(np.count_nonzero((numbers > 0) & ~np.isin(numbers, broken)))
    return alone + len(partition.groups) - len(broken)


def untaken_in_broken_groups(partition: Partition, task: Task) -> int:
    """Untaken rows of groups of which the task has taken other rows. Costs O(rows)."""
    slots = partition.rows.all_slots()
    numbers, untaken = partition.rows["group"][slots], task.states[slots] == UNTAKEN
    return int(np.count_nonzero(untaken & (numbers > 0) & np.isin(numbers, numbers[~untaken])))

"""Which rows the policy of a task lets its claims have.

A row is *stale* if it is staler than the bound, or of an unknown version. It is *excluded* if it does not fit the
filter. A row that lacks a tag or fact which the filter names may yet get it, so it is excluded, but not *rejected*:
claims wait for it, and it is not dropped. Nothing here changes anything, so queries may ask as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.filters import ALL_ROWS, Filter, lacking
from dataplane_server.core.calls.names import UNKNOWN_VERSION
from dataplane_server.core.calls.policies import TaskPolicy
from dataplane_server.core.calls.values import BoolArray, Slots
from dataplane_server.core.rows.matching import fitting
from dataplane_server.core.rows.row_table import RowTable


class Bounds(NamedTuple):
    """oldest: the oldest weight version that a task gets; None for any, also for an unknown one."""

    oldest: int | None = None
    where: Filter = ALL_ROWS


def bounds_of(rows: RowTable, policy: TaskPolicy) -> Bounds:
    """What views check, at the partition's present weight version."""
    oldest = None if policy.bound is None else (rows.weight_version or 0) - policy.bound
    return Bounds(oldest, policy.where)


def outdated(versions: npt.NDArray[np.int32], oldest: int) -> BoolArray:
    """Which weight versions are before the oldest that counts, or unknown."""
    return np.asarray((versions < oldest) | (versions == UNKNOWN_VERSION))


def stale(rows: RowTable, policy: TaskPolicy, slots: Slots | slice) -> BoolArray:
    oldest, versions = bounds_of(rows, policy).oldest, rows["weight_version"][slots]
    return np.zeros(len(versions), np.bool_) if oldest is None else outdated(versions, oldest)


def all_stale(rows: RowTable, policy: TaskPolicy) -> BoolArray:
    """Of all rows, by slot. Two array operations; one if there is no bound."""
    return np.asarray(stale(rows, policy, slice(None)) & rows["alive"])


def too_old(rows: RowTable, policy: TaskPolicy) -> BoolArray:
    """Of all rows, by slot: those that are stale by their version, not since it is unknown."""
    return np.asarray(all_stale(rows, policy) & (rows["weight_version"] != UNKNOWN_VERSION))


def excluded(rows: RowTable, policy: TaskPolicy, slots: Slots) -> BoolArray:
    return ~fitting(rows, policy.where, slots, None, keep=False)


def rejected(rows: RowTable, policy: TaskPolicy, slots: Slots) -> BoolArray:
    found = excluded(rows, policy, slots)
    if found.any():
        found[found] = ~fitting(rows, lacking(policy.where), slots[found], None, keep=False)
    return found

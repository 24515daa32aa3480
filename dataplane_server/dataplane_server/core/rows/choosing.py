"""Which rows go to make room: whole groups and single rows, the first in an order, as few as are enough."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dataplane_server.core.calls.values import BoolArray, Int64Array, Slots


class Wanted(NamedTuple):
    """What must go: at least this number of rows and of bytes, and every marked candidate."""

    rows: int
    size_bytes: int
    marked: BoolArray


def first_units(
    slots: Slots, units: Int64Array, order: tuple[Int64Array, ...], sizes: Int64Array, wanted: Wanted
) -> Slots | None:
    """The candidates that go; None if all together are not enough. units: what each one leaves with. order: keys, the
    most significant first; a unit has the least of its rows. sizes: in bytes.
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

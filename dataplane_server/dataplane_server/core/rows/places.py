"""The places of values: for each row and field, an offset in the arena and a number of entries.

One 64-bit word has both: the offset in the upper bits, as many as the arena's size needs, and the entries in the lower
bits. The words of a row are adjacent, so a row of 10 fields costs 80 bytes and two cache lines, and a call with many
rows and fields takes a few array operations. The word of a field that the row does not hold is 0.

An arena of 4 GiB leaves 30 bits for entries, an arena of 1 TiB 22. When the first value with more entries arrives
(millions in one row), the table is split: offsets and entries get separate arrays, 12 bytes a value instead of 8.
Where values have digests, another array of words has them; elsewhere there is none.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.values import BoolArray, Int64Array, Slots

N = TypeVar("N", np.int64, np.int32)
Index = Int64Array
"""Positions of values: an array row for each field, a column for each row of the call."""


class Places:
    """The words of one partition's rows. width: one more than the largest field index in use."""

    def __init__(self, capacity_bytes: int) -> None:
        self.width = 0
        self._rows = 0
        self._shift = min(31, 63 - capacity_bytes.bit_length())
        self._most = (1 << self._shift) - 1
        self._words: Int64Array = np.zeros(0, np.int64)
        self._entries: npt.NDArray[np.int32] | None = None
        self._digests: Int64Array | None = None

    @property
    def has_digests(self) -> bool:
        return self._digests is not None

    def keep_digests(self, *, keep: bool) -> None:
        """Whether values that are stored from now on have digests. No row may hold a value."""
        if keep != self.has_digests:
            self._digests = np.zeros(self._rows * self.width, np.int64) if keep else None

    def digests(self, index: Index) -> Int64Array | None:
        """Those at the positions; None if values have none."""
        return None if self._digests is None else self._digests[index]

    def grow(self, rows: int) -> None:
        """Make room for this many rows, in place. No code may keep an array over this call."""
        self._rows = rows
        for array in (self._words, self._entries, self._digests):
            if array is not None:
                array.resize(rows * self.width, refcheck=False)

    def set_width(self, width: int) -> None:
        """Make room for field indexes below `width`. Values of fields beyond it must be erased before."""
        if width == self.width:
            return
        old, self.width = self.width, width
        self._words = _resized(self._words, self._rows, old, width)
        if self._entries is not None:
            self._entries = _resized(self._entries, self._rows, old, width)
        if self._digests is not None:
            self._digests = _resized(self._digests, self._rows, old, width)

    def at(self, fields: Int64Array, slots: Int64Array) -> Index:
        """The positions of the fields of rows."""
        return slots * self.width + fields[:, None]

    def load(self, index: Index) -> tuple[Int64Array, Int64Array]:
        """Offsets and entries at the positions."""
        words = self._words[index]
        if self._entries is not None:
            return words, self._entries[index].astype(np.int64)
        return words >> self._shift, words & self._most

    def touch(self, slots: Slots, start: int, end: int) -> BoolArray:
        """Which rows have bytes at offsets from start to end."""
        offsets, entries = self._of_rows(slots)
        inside = (offsets >= start) & (offsets < end) & (entries > 0)
        return np.asarray(inside.any(axis=1))

    def first_offsets(self, slots: Slots) -> Int64Array:
        """The offset of the first value of each row that has bytes; -1 if none has."""
        offsets, entries = self._of_rows(slots)
        if not self.width:
            return np.full(len(slots), -1)
        first = (entries > 0).argmax(axis=1)
        rows = np.arange(len(slots))
        found: Int64Array = np.where(entries[rows, first] > 0, offsets[rows, first], -1)
        return found

    def _of_rows(self, slots: Slots) -> tuple[Int64Array, Int64Array]:
        """Offsets and entries of all fields, an array row for each row."""
        return self.load(slots[:, None] * self.width + np.arange(self.width))

    def store(self, index: Index, offsets: Int64Array, entries: Int64Array, digests: Int64Array | None = None) -> None:
        """digests: of the values; needed if values have some."""
        if self._digests is not None:
            self._digests[index] = 0 if digests is None else digests
        if self._entries is None and int(entries.max(initial=0)) > self._most:
            self._entries = (self._words & self._most).astype(np.int32)
            self._words >>= self._shift
        if self._entries is None:
            self._words[index] = (offsets << self._shift) | entries
        else:
            self._words[index] = offsets
            self._entries[index] = entries

    def erase(self, slots: Int64Array) -> None:
        """Clear the words of rows."""
        if self.width:
            for array in (self._words, self._entries, self._digests):
                if array is not None:
                    array.reshape(-1, self.width)[slots] = 0


def _resized(array: npt.NDArray[N], rows: int, old: int, new: int) -> npt.NDArray[N]:
    resized = np.zeros(rows * new, array.dtype)
    shared = min(old, new)
    resized.reshape(rows, new)[:, :shared] = array.reshape(rows, old)[:, :shared]
    return resized

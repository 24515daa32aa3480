"""The arithmetic of the arena: which byte ranges are in use.

Pure numbers; the bytes themselves lie in `storage`. A range is handed out at an 8-byte boundary and given back in any
pieces, whole rows or runs of them, so clearing most rows of a put frees their bytes although a few stay. Free ranges
are kept maximal (neighbours are merged at once). Those that contain an aligned offset are kept in bins, by the power
of two of the bytes from that offset to their end, so that every range of a larger bin is long enough; the slivers
between columns are in no bin.

Costs: allocate and free are O(1) dictionary work while a larger bin has a range; only a nearly full, fragmented arena
makes `allocate` search a bin. Recently freed ranges are preferred: their pages are warm.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dataplane_server.core.columns import Int64Array

ALIGNMENT = 8
_QUICK_LOOK = 16


class Run(NamedTuple):
    """A contiguous piece of the arena."""

    offset: int
    size_bytes: int


class Space:
    """Free and used bytes of an arena of `capacity` bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._end_of: dict[int, int] = {}  # start of a free range -> its end
        self._start_of: dict[int, int] = {}  # end of a free range -> its start
        self._bins: list[dict[int, None]] = [{} for _ in range(capacity.bit_length() + 1)]
        self._add(0, capacity)

    @property
    def free(self) -> int:
        return self.capacity - self.used

    def allocate(self, size: int) -> int | None:
        """An aligned range of `size` > 0 bytes, or None when no free range is long enough."""
        start = self._find(size)
        return None if start is None else self._take(start, size)

    def release(self, offset: int, size: int) -> None:
        """Give bytes back; they must be in use, and need not be a whole allocation."""
        start, end = offset, offset + size
        if end in self._end_of:
            end = self._remove(end)
        if start in self._start_of:
            start = self._start_of[start]
            self._remove(start)
        self._add(start, end)
        self.used -= size

    def allocate_rows(self, row_bytes: Int64Array) -> Int64Array | None:
        """Offsets for rows of the given sizes, adjacent where a range is long enough for all; None when they do not
        fit.
        """
        total = int(row_bytes.sum())
        if total == 0:
            return np.zeros(len(row_bytes), np.int64)
        base = self.allocate(total)
        if base is not None:
            return base + np.cumsum(row_bytes) - row_bytes
        return self._scatter(row_bytes) if total <= self.free else None

    def release_rows(self, offsets: Int64Array, row_bytes: Int64Array) -> None:
        """Give back rows, in any order."""
        order = np.argsort(offsets, kind="stable")
        starts, lengths = _merge(offsets[order], row_bytes[order])
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            self.release(start, length)

    def free_ranges(self) -> Iterator[tuple[int, int]]:
        """(start, end) of every free range, in no order."""
        return iter(self._end_of.items())

    def _find(self, size: int) -> int | None:
        if size > self.free:
            return None
        own = size.bit_length() - 1
        quick = itertools.islice(reversed(self._bins[own]), _QUICK_LOOK)
        larger = itertools.chain.from_iterable(reversed(b) for b in self._bins[own + 1 :])  # the first will do
        for start in itertools.chain(quick, larger, self._bins[own]):
            if size <= self._end_of[start] - align(start):
                return start
        return None

    def _scatter(self, row_bytes: Int64Array) -> Int64Array | None:
        """Place rows one after the other into the largest ranges; all or nothing."""
        offsets = np.zeros(len(row_bytes), np.int64)
        placed = 0
        ends = np.cumsum(row_bytes)
        for start, end in self._longest_first():
            room = end - align(start)
            if room < row_bytes[placed]:
                break
            before = int(ends[placed - 1]) if placed else 0
            upto = int(np.searchsorted(ends, before + room, side="right"))
            piece = row_bytes[placed:upto]
            base = self._take(start, int(piece.sum()))
            offsets[placed:upto] = base + np.cumsum(piece) - piece
            placed = upto
            if placed == len(row_bytes):
                return offsets
        self.release_rows(offsets[:placed], row_bytes[:placed])
        return None

    def _longest_first(self) -> Iterator[tuple[int, int]]:
        """Ranges with room, sorted bin by bin, so that a caller who needs few pays for few."""
        for ranges in reversed(self._bins):
            yield from sorted(((start, self._end_of[start]) for start in ranges), key=lambda r: align(r[0]) - r[1])

    def _take(self, start: int, size: int) -> int:
        """Take `size` bytes (perhaps none) from the free range that begins at `start`; it must be long enough."""
        offset = align(start)
        if size:
            end = self._remove(start)
            if offset > start:
                self._add(start, offset)
            if offset + size < end:
                self._add(offset + size, end)
            self.used += size
        return offset

    def _add(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._start_of[end] = start
        room = end - align(start)
        if room > 0:
            self._bins[room.bit_length() - 1][start] = None

    def _remove(self, start: int) -> int:
        end = self._end_of.pop(start)
        del self._start_of[end]
        room = end - align(start)
        if room > 0:
            del self._bins[room.bit_length() - 1][start]
        return end


def merged_runs(offsets: Int64Array, sizes: Int64Array) -> list[Run]:
    """The same bytes in the same order in as few runs as possible; empty pieces vanish."""
    starts, lengths = _merge(offsets, sizes)
    return list(map(Run, starts.tolist(), lengths.tolist()))


def _merge(offsets: Int64Array, sizes: Int64Array) -> tuple[Int64Array, Int64Array]:
    keep = sizes > 0
    offsets, sizes = offsets[keep], sizes[keep]
    if not len(offsets):
        return offsets, sizes
    first = np.flatnonzero(np.concatenate(([True], offsets[1:] != offsets[:-1] + sizes[:-1])))
    return offsets[first], np.add.reduceat(sizes, first)


def align(offset: int) -> int:
    return (offset + ALIGNMENT - 1) & ~(ALIGNMENT - 1)

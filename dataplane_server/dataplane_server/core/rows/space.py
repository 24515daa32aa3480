"""The allocator of the arena: which byte ranges are in use.

It computes offsets only; the bytes are in `storage`. A range is allocated at an 8-byte boundary and released in any
pieces, so clearing most rows of a put frees their bytes although a few rows stay. Free ranges are maximal: neighbours
are merged. A free range that contains an aligned offset is in a bin, by the power of two of the bytes from that offset
to its end, so every range of a larger bin is long enough. The slivers between columns are in no bin.

Costs: allocate and release are O(1) dictionary work while a larger bin has a range. Only a nearly full, fragmented
arena makes `allocate` search a bin. Recently freed ranges are preferred, since their pages are warm. When many ranges
are released at once (thousands of rows that are not neighbours), one array operation adds them to the pending frees,
and `merge_pending` merges them between calls. Allocation merges them itself if it finds no range without them, and
release if there are too many. Bytes of pending frees count as free.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from dataplane_server.core.calls.values import Int64Array, Run
from dataplane_server.core.rows.ranges import merged_runs, ranges_of
from dataplane_server.core.rows.releases import Releases

ALIGNMENT = 8
_QUICK_SEARCH = 16
_FEW = 1024
_SEARCH = 1024
_MOST_PENDING = 1 << 19


class Space(Releases):
    """Free and used bytes of an arena of `capacity` bytes."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.used = 0
        self._end_of: dict[int, int] = {}  # start of a free range -> its end
        self._start_of: dict[int, int] = {}  # end of a free range -> its start
        self._bins: list[dict[int, None]] = [{} for _ in range(capacity.bit_length() + 1)]
        self._pending: list[tuple[Int64Array, Int64Array]] = []  # starts and ends
        self._pending_count = 0
        self._add(0, capacity)

    @property
    def free(self) -> int:
        return self.capacity - self.used

    @property
    def span(self) -> int:
        """All offsets are below."""
        return self.capacity

    @property
    def used_end(self) -> int:
        """No byte from here on is in use."""
        return self._start_of.get(self.capacity, self.capacity)

    def capacity_of(self, node: int) -> int:
        return self.capacity

    def free_of(self, node: int) -> int:
        return self.free

    def allocate(self, size: int) -> int | None:
        """Allocate an aligned range of `size` > 0 bytes. Returns its offset; None if no free range is long enough."""
        start = self._find(size)
        return None if start is None else self._take(start, [size])[0]

    def allocate_columns(self, row_bytes: Int64Array, node: int = 0) -> tuple[Int64Array, tuple[Run, ...]] | None:
        """Allocate the rows of columns (a column is a row of the array). Returns their offsets, and their runs in this
        order; None if they do not fit. The rows of a column are adjacent if one range is long enough for them. node: of
        `Regions`.
        """
        offsets = row_bytes.cumsum(axis=1) - row_bytes
        totals = row_bytes.sum(axis=1).tolist()
        start = self._find(sum(map(align, totals)))
        if start is None:
            return self._allocate_one_by_one(row_bytes, offsets, totals) if sum(totals) <= self.free else None
        bases = self._take(start, totals)
        offsets += np.array(bases, np.int64)[:, None]
        return offsets, tuple(Run(base, total) for base, total in zip(bases, totals, strict=True) if total)

    def _allocate_one_by_one(
        self, row_bytes: Int64Array, offsets: Int64Array, totals: list[int]
    ) -> tuple[Int64Array, tuple[Run, ...]] | None:
        """As allocate_columns, if no range is long enough for all columns. offsets: of rows within their column."""
        runs: list[Run] = []
        for column, total in enumerate(totals):
            base = self.allocate(total) if total else 0
            if base is not None:
                offsets[column] += base
                runs += [Run(base, total)] if total else []
                continue
            scattered = self._scatter(row_bytes[column]) if total <= self.free else None
            if scattered is None:
                self.release_ranges(*ranges_of(offsets[:column].ravel(), row_bytes[:column].ravel()))
                return None
            offsets[column] = scattered
            runs += merged_runs(scattered, row_bytes[column])
        return offsets, tuple(runs)

    def release_ranges(self, starts: Int64Array, ends: Int64Array) -> None:
        self.freed = True
        self.used -= int((ends - starts).sum())
        if self._pending_count > _MOST_PENDING:
            self.merge_pending(self._pending_count - _MOST_PENDING)
        if len(starts) > _FEW:
            self._pending.append((starts, ends))
            self._pending_count += len(starts)
        else:
            self._merge_in_all(starts, ends)

    @property
    def free_pieces(self) -> int:
        """How many free ranges there are, pending frees included."""
        return len(self._end_of) + self._pending_count

    @property
    def largest_free(self) -> int:
        """Bytes of the longest free range, from its first aligned offset. If many ranges have about its size, of one
        that is at least half as long.
        """
        ranges = next((ranges for ranges in reversed(self._bins) if ranges), None)
        starts = itertools.islice(ranges or (), _SEARCH)
        return max((self._end_of[start] - align(start) for start in starts), default=0)

    def free_ranges(self) -> Iterator[tuple[int, int]]:
        """(start, end) of every merged free range, in any order."""
        return iter(self._end_of.items())

    def pending_ranges(self) -> Iterator[tuple[int, int]]:
        """(start, end) of every pending free: free, but not yet merged with its neighbours."""
        for starts, ends in self._pending:
            yield from zip(starts.tolist(), ends.tolist(), strict=True)

    def _find(self, size: int) -> int | None:
        """The start of a free range that has `size` bytes from its first aligned offset."""
        if self.used + size > self.capacity:
            return None
        start = self._find_merged(size)
        while start is None and self._pending:
            self.merge_pending(max(_FEW, self._pending_count // 16))
            start = self._find_merged(size)
        return start

    def _find_merged(self, size: int) -> int | None:
        own = size.bit_length() - 1
        for start in itertools.islice(reversed(self._bins[own]), _QUICK_SEARCH):
            if size <= self._end_of[start] - align(start):
                return start
        for larger in self._bins[own + 1 :]:
            if larger:
                return next(reversed(larger))
        for start in self._bins[own]:
            if size <= self._end_of[start] - align(start):
                return start
        return None

    def _scatter(self, row_bytes: Int64Array) -> Int64Array | None:
        """Place rows, in order, into the largest ranges. None if not all fit."""
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
            (base,) = self._take(start, [int(piece.sum())])
            offsets[placed:upto] = base + np.cumsum(piece) - piece
            placed = upto
            if placed == len(row_bytes):
                return offsets
        self.release_ranges(*ranges_of(offsets[:placed], row_bytes[:placed]))
        return None

    def _longest_first(self) -> Iterator[tuple[int, int]]:
        """Ranges in bins, longest first; sorted bin by bin, so that a caller that needs few pays for few."""
        for ranges in reversed(self._bins):
            yield from sorted(((start, self._end_of[start]) for start in ranges), key=lambda r: align(r[0]) - r[1])

    def _take(self, start: int, sizes: list[int]) -> list[int]:
        """Take consecutive aligned pieces (0 bytes are allowed) from the free range that begins at `start`, which must
        be long enough. Returns their offsets.
        """
        if not any(sizes):
            return [0] * len(sizes)
        end = self._remove(start)
        offsets = []
        for size in sizes:
            offset = align(start)
            offsets.append(offset)
            if size and offset > start:
                self._add(start, offset)
            if size:
                start = offset + size
        if start < end:
            self._add(start, end)
        self.used += sum(sizes)
        return offsets

    @property
    def pending_frees(self) -> int:
        """How many ranges are free but not yet merged."""
        return self._pending_count

    def merge_pending(self, count: int) -> None:
        """Merge up to `count` pending frees into the free ranges. Takes about a microsecond each."""
        if not self._pending:
            return
        starts, ends = self._pending.pop()
        if len(starts) > count:
            self._pending.append((starts[:-count], ends[:-count]))
            starts, ends = starts[-count:], ends[-count:]
        self._pending_count -= len(starts)
        self._merge_in_all(starts, ends)

    def _merge_in_all(self, starts: Int64Array, ends: Int64Array) -> None:
        end_of, start_of, bins = self._end_of, self._start_of, self._bins
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if end in end_of or start in start_of:
                self._merge_in(start, end)
                continue
            end_of[start] = end  # as _add; the call would double the time
            start_of[end] = start
            room = end - (start + ALIGNMENT - 1 & -ALIGNMENT)
            if room > 0:
                bins[room.bit_length() - 1][start] = None

    def _merge_in(self, start: int, end: int) -> None:
        """Add a free range, merged with its free neighbours."""
        if end in self._end_of:
            end = self._remove(end)
        if start in self._start_of:
            start = self._start_of[start]
            self._remove(start)
        self._add(start, end)

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


def align(offset: int) -> int:
    return (offset + ALIGNMENT - 1) & ~(ALIGNMENT - 1)

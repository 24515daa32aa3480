"""An arena that a test owns: real bytes, and a map of those in use.

Space is taken where the core says and must have been free. Bytes that become free are overwritten, so a reader that
still needs them notices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dataplane_server.core.calls.values import Copy, Run
from dataplane_server.core.rows.space import ALIGNMENT


class Arena:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._bytes = bytearray(capacity)
        self._in_use = bytearray(capacity)  # 1 where a byte is in use

    @property
    def used(self) -> int:
        return self._in_use.count(1)

    def take(self, runs: Iterable[Run]) -> None:
        for offset, size in runs:
            assert size > 0
            assert offset % ALIGNMENT == 0
            assert not self._in_use.count(1, offset, offset + size), "bytes were reserved twice"
            self._in_use[offset : offset + size] = b"\1" * size

    def free(self, runs: Iterable[Run]) -> None:
        for offset, size in runs:
            assert self._in_use.count(1, offset, offset + size) == size, "bytes were freed twice"
            self._in_use[offset : offset + size] = bytes(size)
            self._bytes[offset : offset + size] = b"\xdd" * size

    def copy_in(self, runs: Iterable[Run], data: bytes) -> None:
        for offset, size in runs:
            self._bytes[offset : offset + size] = data[:size]
            data = data[size:]
        assert not data

    def copy(self, copies: Iterable[Copy]) -> None:
        """Copy what is there to other places, which are not free either."""
        for source, target, size in copies:
            for offset in (source, target):
                assert self._in_use.count(1, offset, offset + size) == size, "bytes were copied that nobody has"
            self._bytes[target : target + size] = self._bytes[source : source + size]

    def copy_out(self, runs: Iterable[Run]) -> bytes:
        return b"".join(self._bytes[offset : offset + size] for offset, size in runs)

    def may_fit(self, column_sizes: Sequence[int]) -> bool:
        """Whether there are so many free bytes."""
        return sum(column_sizes) <= self.capacity - self.used

    def must_fit(self, column_sizes: Sequence[int]) -> bool:
        """Whether one free range is long enough for all columns one after the other."""
        return padded(column_sizes) <= longest_room(self._in_use)

    def never_fits(self, column_sizes: Sequence[int], beside: int = 0) -> bool:
        return padded(column_sizes) + beside > self.capacity


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same bytes, in the order of their places, as the fewest runs."""
    found: list[Run] = []
    for offset, size in sorted(runs):
        if found and sum(found[-1]) == offset:
            found[-1] = Run(found[-1].offset, found[-1].size_bytes + size)
        else:
            found.append(Run(offset, size))
    return found


def free_ranges(in_use: bytes | bytearray) -> list[tuple[int, int]]:
    """(start, end) of each longest run of zeros."""
    return [found.span() for found in re.finditer(rb"\0+", in_use)]


def longest_room(in_use: bytes | bytearray) -> int:
    """Bytes of the longest free range, counted from its first aligned offset."""
    return max((max(0, end - aligned(start)) for start, end in free_ranges(in_use)), default=0)


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def padded(column_sizes: Sequence[int]) -> int:
    """Bytes from the first column's begin to the last one's end, each aligned; empty columns take no room."""
    sizes = [size for size in column_sizes if size]
    return sum(map(aligned, sizes[:-1])) + sum(sizes[-1:])


def cut(runs: Iterable[Run], sizes: Iterable[int]) -> list[list[Run]]:
    """The bytes of the runs dealt out in their order: pieces for each of the sizes."""
    rest = list(runs)[::-1]
    dealt: list[list[Run]] = []
    for size in sizes:
        pieces: list[Run] = []
        while size:
            offset, length = rest.pop()
            pieces.append(Run(offset, min(size, length)))
            if length > size:
                rest.append(Run(offset + size, length - size))
            size -= pieces[-1].size_bytes
        dealt.append(pieces)
    return dealt

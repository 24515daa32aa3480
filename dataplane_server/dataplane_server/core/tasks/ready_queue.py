"""A queue of 64-bit entries in one array with room at both ends.

Ready rows are the most numerous thing that a task keeps: an entry costs 8 bytes and an eighth of slack, and many are
appended, peeked at or dropped at once. When an end runs out of room the entries are copied, which is rare enough that
its cost a call is constant.
"""

from __future__ import annotations

import numpy as np

from dataplane_server.core.calls.values import Int64Array

_SPARE = 64


class ReadyQueue:
    """Entries from head to tail. What `peek` returns is valid until the next change."""

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._end - self._head

    def clear(self) -> None:
        self._array: Int64Array = np.zeros(0, np.int64)
        self._head = self._end = 0

    def append(self, entries: Int64Array) -> None:
        if self._end + len(entries) > len(self._array):
            self._make_room(0, len(entries))
        self._array[self._end : self._end + len(entries)] = entries
        self._end += len(entries)

    def prepend(self, entries: Int64Array) -> None:
        """Put entries, in their order, ahead of all others."""
        if self._head < len(entries):
            self._make_room(len(entries), 0)
        self._head -= len(entries)
        self._array[self._head : self._head + len(entries)] = entries

    def peek(self, count: int) -> Int64Array:
        """Up to `count` entries from the head, which stay in the queue."""
        return self._array[self._head : min(self._head + count, self._end)]

    def drop(self, count: int) -> None:
        self._head += count

    def _make_room(self, before: int, after: int) -> None:
        waiting = self.peek(len(self))
        spare = len(waiting) // 8 + _SPARE
        before += spare if before else 0
        after += spare
        array = np.zeros(before + len(waiting) + after, np.int64)
        array[before : before + len(waiting)] = waiting
        self._array, self._head, self._end = array, before, before + len(waiting)

"""Queues of ready rows and groups, in order of arrival or in the order of a key.

A task may have millions of ready rows: an entry is a number in an array, which costs eight bytes (sixteen with a key)
and some slack, and calls add, look at and drop many at once. Groups are fewer and may leave from the middle, so they
are in a dict. What `peek` returns is valid until the next change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.values import Int64Array

Keys = npt.NDArray[np.float64]
"""By which entries are ordered, ascending."""

_SPARE = 64
_MOST_RUNS = 16
_NO_KEYS: Keys = np.zeros(0)


class Entries(NamedTuple):
    """numbers: 64 bits each. keys: one for each, no NaN; none in order of arrival."""

    numbers: Int64Array
    keys: Keys = _NO_KEYS


class ReadyQueue:
    """Entries in order of arrival, in one array with room at both ends. When an end runs out of room, the entries are
    copied, at a constant amortized cost.
    """

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._end - self._head

    def clear(self) -> None:
        self._array: Int64Array = np.zeros(0, np.int64)
        self._head = self._end = 0

    def append(self, entries: Entries) -> None:
        numbers = entries.numbers
        if self._end + len(numbers) > len(self._array):
            self._make_room(0, len(numbers))
        self._array[self._end : self._end + len(numbers)] = numbers
        self._end += len(numbers)

    def prepend(self, entries: Entries) -> None:
        """Put entries, in their order, ahead of all others."""
        numbers = entries.numbers
        if self._head < len(numbers):
            self._make_room(len(numbers), 0)
        self._head -= len(numbers)
        self._array[self._head : self._head + len(numbers)] = numbers

    def peek(self, count: int) -> Entries:
        """Up to `count` entries from the head. They stay in the queue."""
        return Entries(self._array[self._head : min(self._head + count, self._end)])

    def drop(self, count: int) -> None:
        self._head += count

    def _make_room(self, before: int, after: int) -> None:
        waiting = self.peek(len(self)).numbers
        spare = len(waiting) // 8 + _SPARE
        before += spare if before else 0
        after += spare
        array = np.zeros(before + len(waiting) + after, np.int64)
        array[before : before + len(waiting)] = waiting
        self._array, self._head, self._end = array, before, before + len(waiting)


class KeyedQueue:
    """Entries in ascending order of their keys; those of one key in order of arrival.

    They lie in at most 16 sorted runs, in order of arrival. A head is taken from all of them. When there are more, the
    two neighbours that are smallest together become one, so adding many entries, a few at a time, costs a logarithmic
    number of copies of each. A heap of tuples would take 100 bytes a row and a Python call for each.
    """

    def __init__(self) -> None:
        self._runs: list[Entries] = []

    def __len__(self) -> int:
        return sum([len(run.numbers) for run in self._runs])

    def clear(self) -> None:
        self._runs = []

    def append(self, entries: Entries) -> None:
        self._insert(len(self._runs), entries)

    def prepend(self, entries: Entries) -> None:
        """Put entries, in their order, ahead of all others of their keys."""
        self._insert(0, entries)

    def peek(self, count: int) -> Entries:
        """Up to `count` entries from the head. They stay in the queue."""
        return self._heads(count)[0]

    def drop(self, count: int) -> None:
        """Drop entries from the head."""
        _, of_runs = self._heads(count)
        left = [Entries(run.numbers[gone:], run.keys[gone:]) for run, gone in zip(self._runs, of_runs, strict=True)]
        self._runs = [run for run in left if len(run.numbers)]

    def _heads(self, count: int) -> tuple[Entries, list[int]]:
        """The first entries, and how many of them each run has."""
        heads = [Entries(run.numbers[:count], run.keys[:count]) for run in self._runs]
        merged, order = _merged(heads)
        runs = np.repeat(np.arange(len(heads)), [len(head.numbers) for head in heads])[order[:count]]
        return Entries(merged.numbers[:count], merged.keys[:count]), np.bincount(runs, minlength=len(heads)).tolist()

    def _insert(self, place: int, entries: Entries) -> None:
        if not len(entries.numbers):
            return
        self._runs.insert(place, _merged([entries])[0])
        while len(self._runs) > _MOST_RUNS:
            sizes = np.array([len(run.numbers) for run in self._runs])
            first = int(np.argmin(sizes[1:] + sizes[:-1]))
            self._runs[first : first + 2] = [_merged(self._runs[first : first + 2])[0]]


def _merged(runs: list[Entries]) -> tuple[Entries, Int64Array]:
    """All entries as one run, and the place that each had."""
    keys = np.concatenate([_NO_KEYS, *(run.keys for run in runs)])
    numbers = np.concatenate([np.zeros(0, np.int64), *(run.numbers for run in runs)])
    order: Int64Array = np.argsort(keys, kind="stable")
    return Entries(numbers[order], keys[order]), order


class GroupQueue:
    """Numbers, each at most once, in order of arrival."""

    def __init__(self) -> None:
        self._queue: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, number: int) -> bool:
        return number in self._queue

    def __iter__(self) -> Iterator[int]:
        return iter(self._queue)

    def clear(self) -> None:
        self._queue.clear()

    def append(self, numbers: Iterable[int], keys: Iterable[float]) -> None:
        """Add numbers that are not in the queue."""
        self._queue.update(dict.fromkeys(numbers))

    def prepend(self, numbers: list[int], keys: list[float]) -> None:
        """Put numbers that are not in the queue, in their order, ahead of all others."""
        for number in reversed(numbers):
            self._queue[number] = None
            self._queue.move_to_end(number, last=False)

    def discard(self, number: int) -> None:
        self._queue.pop(number, None)

    def peek(self, count: int) -> list[int]:
        """Up to `count` numbers from the head. They stay in the queue."""
        return list(islice(self._queue, count))


class KeyedGroupQueue:
    """Numbers, each at most once, in ascending order of their keys; those of one key in order of arrival. In a heap,
    from which a number that has left is removed when it comes to the top.
    """

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __iter__(self) -> Iterator[int]:
        return iter([number for _, _, number in sorted(filter(self._is_valid, self._heap))])

    def key(self, number: int) -> float:
        """The key of a number that is in the queue."""
        return self._places[number][0]

    def clear(self) -> None:
        self._places: dict[int, tuple[float, int]] = {}  # key and place of each number
        self._heap: list[tuple[float, int, int]] = []  # the same, with the number
        self._first = self._last = 0

    def append(self, numbers: Iterable[int], keys: Iterable[float]) -> None:
        """Add numbers that are not in the queue."""
        for number, key in zip(numbers, keys, strict=True):
            self._last += 1
            self._push(number, key, self._last)

    def prepend(self, numbers: list[int], keys: list[float]) -> None:
        """Put numbers that are not in the queue, in their order, ahead of all others of their keys."""
        for number, key in zip(reversed(numbers), reversed(keys), strict=True):
            self._first -= 1
            self._push(number, key, self._first)

    def discard(self, number: int) -> None:
        self._places.pop(number, None)
        if len(self._heap) > 2 * len(self._places) + _SPARE:
            self._heap = sorted(filter(self._is_valid, self._heap))

    def peek(self, count: int) -> list[int]:
        """Up to `count` numbers from the head. They stay in the queue."""
        heads: list[tuple[float, int, int]] = []
        while self._heap and len(heads) < count:
            head = heappop(self._heap)
            if self._is_valid(head):
                heads.append(head)
        for head in heads:
            heappush(self._heap, head)
        return [number for _, _, number in heads]

    def _push(self, number: int, key: float, place: int) -> None:
        self._places[number] = (key, place)
        heappush(self._heap, (key, place, number))

    def _is_valid(self, head: tuple[float, int, int]) -> bool:
        return self._places.get(head[2]) == head[:2]

"""Times at which delayed rows return to their tasks, and deadlines of groups.

A delayed row may be reset, cleared or delayed again meanwhile, and a group may end. So an entry is only a reminder: the
task knows until when each row is held, and returns those whose time has come. Entries that are not needed any more are
swept out when they may outnumber the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from dataplane_server.core.calls.values import Slots

_FEW = 64


class Due(NamedTuple):
    """Rows of a task whose delay may end. at: seconds, monotonic. order: of arrival, for equal times."""

    at: float
    order: int
    partition_id: str
    task: str
    slots: Slots


class Deadline(NamedTuple):
    """A reserved group that may have to end. at: seconds, monotonic. order: of arrival, for equal times."""

    at: float
    order: int
    partition_id: str
    reservation_id: str


E = TypeVar("E", Due, Deadline)


class _Reminders(Generic[E]):
    """Entries, the earliest first."""

    def __init__(self) -> None:
        self._heap: list[E] = []
        self._added = 0
        self._swept = _FEW  # entries after the last sweep

    def _push(self, entry: E) -> None:
        self._added = entry.order
        heapq.heappush(self._heap, entry)

    def due(self, now: float) -> list[E]:
        """Remove and return the entries that are due by now."""
        due: list[E] = []
        while self._heap and self._heap[0].at <= now:
            due.append(heapq.heappop(self._heap))
        return due

    @property
    def crowded(self) -> bool:
        """Whether there are more than twice as many entries as after the last sweep."""
        return len(self._heap) > 2 * self._swept

    def sweep(self, needed: Callable[[E], bool]) -> None:
        """Drop entries that are not needed, and all but one of equal entries."""
        self._heap = [entry for entry in self._different() if needed(entry)]
        heapq.heapify(self._heap)
        self._swept = max(_FEW, len(self._heap))

    def _different(self) -> Iterable[E]:
        return self._heap

    @property
    def next_due(self) -> float | None:
        return self._heap[0].at if self._heap else None


class Delays(_Reminders[Due]):
    """Delays of rows."""

    def add(self, at: float, partition_id: str, task: str, slots: Slots) -> None:
        self._push(Due(at, self._added + 1, partition_id, task, slots))

    def _different(self) -> Iterable[Due]:
        return {(due.at, due.partition_id, due.task, due.slots.tobytes()): due for due in self._heap}.values()


class Deadlines(_Reminders[Deadline]):
    """Deadlines of groups, of which each has one."""

    def add(self, at: float, partition_id: str, reservation_id: str) -> None:
        self._push(Deadline(at, self._added + 1, partition_id, reservation_id))

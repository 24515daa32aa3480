"""Times at which delayed rows return to their tasks, and deadlines of groups.

A delayed row may be reset, cleared or delayed again meanwhile. So an entry is only a reminder: the task knows until
when each row is held, and returns those whose time has come. Entries without any such row are swept out when they may
outnumber the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from dataplane_server.core.calls.values import Slots

_FEW = 64


class Due(NamedTuple):
    """Rows of a task whose delay may end. at: seconds, monotonic. order: of arrival, for equal times."""

    at: float
    order: int
    partition_id: str
    task: str
    slots: Slots


class Delays:
    """Entries, the earliest first."""

    def __init__(self) -> None:
        self._heap: list[Due] = []
        self._added = 0
        self._swept = _FEW  # entries after the last sweep

    def add(self, at: float, partition_id: str, task: str, slots: Slots) -> None:
        self._added += 1
        heapq.heappush(self._heap, Due(at, self._added, partition_id, task, slots))

    def due(self, now: float) -> list[Due]:
        """Remove and return the entries that are due by now."""
        due: list[Due] = []
        while self._heap and self._heap[0].at <= now:
            due.append(heapq.heappop(self._heap))
        return due

    @property
    def crowded(self) -> bool:
        """Whether there are more than twice as many entries as after the last sweep."""
        return len(self._heap) > 2 * self._swept

    def sweep(self, needed: Callable[[Due], bool]) -> None:
        """Drop entries that are not needed, and all but one of equal entries."""
        one_of_each = {(due.at, due.partition_id, due.task, due.slots.tobytes()): due for due in self._heap}
        self._heap = [due for due in one_of_each.values() if needed(due)]
        heapq.heapify(self._heap)
        self._swept = max(_FEW, len(self._heap))

    @property
    def next_due(self) -> float | None:
        return self._heap[0].at if self._heap else None


class Deadline(NamedTuple):
    """A reserved group that may have to end. at: seconds, monotonic. order: of arrival, for equal times."""

    at: float
    order: int
    partition_id: str
    reservation_id: str


class Deadlines:
    """Those of groups, the earliest first. Groups that end before are swept out when they may outnumber the others."""

    def __init__(self) -> None:
        self._heap: list[Deadline] = []
        self._added = 0
        self._swept = _FEW

    def add(self, at: float, partition_id: str, reservation_id: str, needed: Callable[[Deadline], bool]) -> None:
        """needed: whether the group of a deadline is still reserved."""
        self._added += 1
        heapq.heappush(self._heap, Deadline(at, self._added, partition_id, reservation_id))
        if len(self._heap) > 2 * self._swept:
            self._heap = [deadline for deadline in self._heap if needed(deadline)]
            heapq.heapify(self._heap)
            self._swept = max(_FEW, len(self._heap))

    def due(self, now: float) -> list[Deadline]:
        """Remove and return those that have passed by now."""
        due: list[Deadline] = []
        while self._heap and self._heap[0].at <= now:
            due.append(heapq.heappop(self._heap))
        return due

    @property
    def next_due(self) -> float | None:
        return self._heap[0].at if self._heap else None

"""Rows that a release holds back, until their time has come.

A row may be reset, cleared or delayed anew meanwhile. So when a time comes up it is only an occasion to look: the task
knows until when each of its rows is held, and gives back those whose time it is. Times for which no row waits any more
are swept out when they may be as many as the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from dataplane_server.core.rows import Slots

_FEW = 64


class Due(NamedTuple):
    """Rows of a task whose delay may be over. `at`: seconds, monotonic. order: tells equal times apart."""

    at: float
    order: int
    partition_id: str
    task: str
    slots: Slots


class Delays:
    """Times that are to come, the nearest first."""

    def __init__(self) -> None:
        self._heap: list[Due] = []
        self._added = 0
        self._swept = _FEW  # how many there were after the last sweep

    def add(self, at: float, partition_id: str, task: str, slots: Slots) -> None:
        self._added += 1
        heapq.heappush(self._heap, Due(at, self._added, partition_id, task, slots))

    def due(self, now: float) -> list[Due]:
        """What has come up by now; it is no longer here."""
        come: list[Due] = []
        while self._heap and self._heap[0].at <= now:
            come.append(heapq.heappop(self._heap))
        return come

    @property
    def crowded(self) -> bool:
        """Whether there are twice as many as after the last sweep."""
        return len(self._heap) > 2 * self._swept

    def sweep(self, stands: Callable[[Due], bool]) -> None:
        """Drop those for which nothing stands any more, and all but one of those that are equal."""
        one_of_each = {(due.at, due.partition_id, due.task, due.slots.tobytes()): due for due in self._heap}
        self._heap = [due for due in one_of_each.values() if stands(due)]
        heapq.heapify(self._heap)
        self._swept = max(_FEW, len(self._heap))

    @property
    def next_due(self) -> float | None:
        return self._heap[0].at if self._heap else None

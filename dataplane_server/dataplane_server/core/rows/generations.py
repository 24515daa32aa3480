"""Generations of rows, and a sparse log of when they were assigned.

A row's generation is a number that no other row of the server has. Generations are assigned in ascending order, so a
short log of pairs (first generation, time) dates every row without a timestamp per row. Entries are at least a second
apart and are thinned out as they age: an age is exact to a second or to a hundredth of itself, and the log of a server
that has run for years has some two thousand entries.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.values import Int64Array

_APART_S = 1.0
_PART_OF_AGE = 0.01
_MANY = 4096


class GenerationClock:
    """Assigns the generations of all rows of a server."""

    def __init__(self, first: int = 1) -> None:
        self.next = first
        self._firsts: list[int] = []
        self._times: list[float] = []

    def take(self, count: int) -> Int64Array:
        """Generations of `count` new rows, ascending."""
        begin, self.next = self.next, self.next + count
        return np.arange(begin, self.next)

    def record(self, now: float) -> None:
        """Note that rows are about to be created at now (monotonic, s)."""
        if not self._times or now - self._times[-1] >= _APART_S:
            self._firsts.append(self.next)
            self._times.append(now)
            if len(self._times) > _MANY:
                self._thin_out(now)

    def age(self, generation: float, now: float) -> float:
        """Seconds since a row was created: never too low, at most a second or a hundredth too high. 0 if `record` was
        never called.
        """
        entry = max(bisect_right(self._firsts, generation) - 1, 0)
        return max(now - self._times[entry], 0.0) if self._times else 0.0

    def ages(self, generations: Int64Array, now: float) -> npt.NDArray[np.float64]:
        """As `age`, of many rows at once."""
        if not self._times:
            return np.zeros(len(generations))
        entries = np.maximum(np.searchsorted(self._firsts, generations, side="right") - 1, 0)
        return np.maximum(now - np.array(self._times)[entries], 0.0)

    def _thin_out(self, now: float) -> None:
        """Drop each entry whose neighbours are close enough together for ages of its time."""
        kept = [0]
        for entry in range(1, len(self._times)):
            apart = max(_APART_S, _PART_OF_AGE * (now - self._times[entry]))
            if entry == len(self._times) - 1 or self._times[entry + 1] - self._times[kept[-1]] > apart:
                kept.append(entry)
        self._firsts = [self._firsts[entry] for entry in kept]
        self._times = [self._times[entry] for entry in kept]

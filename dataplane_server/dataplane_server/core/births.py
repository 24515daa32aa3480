"""Which row came when: births, and the times that belong to them.

A row's *birth* is a number that no other row of the server has; callers know it as the row's generation. Births are
handed out in growing order, so a short log of "from this birth on it was that time" dates every row: nothing is kept
for a row. Entries are a second apart at least, and are thinned out as they grow old, so that an age is exact to a
second or to a hundredth of itself, and the log of a server that has run for years has some two thousand entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from dataplane_server.core.columns import Int64Array

_APART_S = 1.0
_PART_OF_AGE = 0.01
_MANY = 4096


class Births:
    """Counts the rows of a server."""

    def __init__(self, first: int = 1) -> None:
        self.next = first
        self._firsts: list[int] = []
        self._times: list[float] = []

    def take(self, count: int) -> Int64Array:
        """Births of so many new rows, in growing order."""
        begin, self.next = self.next, self.next + count
        return np.arange(begin, self.next)

    def tell(self, now: float) -> None:
        """Rows are about to be born at now (monotonic, s)."""
        if not self._times or now - self._times[-1] >= _APART_S:
            self._firsts.append(self.next)
            self._times.append(now)
            if len(self._times) > _MANY:
                self._thin_out(now)

    def age(self, birth: float, now: float) -> float:
        """Seconds since a row was born; never less, at most a second or a hundredth more. 0 when nobody told."""
        entry = max(bisect_right(self._firsts, birth) - 1, 0)
        return max(now - self._times[entry], 0.0) if self._times else 0.0

    def ages(self, births: Sequence[float | None], now: float) -> list[float | None]:
        """The ages of many rows; None where there is no row."""
        return [None if birth is None else self.age(birth, now) for birth in births]

    def _thin_out(self, now: float) -> None:
        """Keep an entry where the one kept before it is farther away than ages of its time need."""
        kept = [0]
        for entry in range(1, len(self._times)):
            apart = max(_APART_S, _PART_OF_AGE * (now - self._times[entry]))
            if entry == len(self._times) - 1 or self._times[entry + 1] - self._times[kept[-1]] > apart:
                kept.append(entry)
        self._firsts = [self._firsts[entry] for entry in kept]
        self._times = [self._times[entry] for entry in kept]

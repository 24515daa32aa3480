"""When released bytes are free: at once, or once the calls that released them are on stable storage.

A server on disk must not overwrite values before the call that freed them is on stable storage: after a loss of power
their rows would be there again. `defer_frees` makes each release wait for `settle`; until then its bytes are in use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from dataplane_server.core.calls.values import Int64Array
from dataplane_server.core.rows.ranges import ranges_of


class Releases:
    """Releases of memory. freed: bytes were released since it was last set to False. withheld: how often bytes or slots
    were kept because a reader pins their rows. defer_frees: whether releases wait for `settle`.
    """

    def __init__(self) -> None:
        self.freed = False
        self.withheld = 0
        self.defer_frees = False
        self._deferred: deque[tuple[Int64Array, Int64Array]] = deque()  # starts and ends of a release
        self._settled = 0

    def release_ranges(self, starts: Int64Array, ends: Int64Array) -> None:
        """Free ranges at once, ascending and joined."""
        raise NotImplementedError  # no abstract method: what checkpoints hold derives from classes of the core alone

    def release_rows(self, offsets: Int64Array, row_bytes: Int64Array) -> None:
        """Free bytes that are in use, in any order: whole allocations or parts of them."""
        starts, ends = ranges_of(offsets, row_bytes)
        if self.defer_frees:
            self._deferred.append((starts, ends))
        else:
            self.release_ranges(starts, ends)

    def release(self, offset: int, size: int) -> None:
        """As release_rows, of one piece."""
        self.release_rows(np.array([offset]), np.array([size]))

    @property
    def releases(self) -> int:
        """How many releases were deferred since the beginning."""
        return self._settled + len(self._deferred)

    @property
    def has_deferred(self) -> bool:
        return bool(self._deferred)

    def settle(self, releases: int) -> None:
        """Free what the first `releases` deferred ones since the beginning released."""
        while self._settled < releases:
            self.release_ranges(*self._deferred.popleft())
            self._settled += 1

    def deferred_ranges(self) -> Iterator[tuple[int, int]]:
        """(start, end) of every deferred release."""
        for starts, ends in self._deferred:
            yield from zip(starts.tolist(), ends.tolist(), strict=True)

"""The core's clockwork: it is told of the time while something can become due.

While sessions live or rows are held back, a tick comes every 25 ms and lets the core do what is due, so nothing is done
more than that too late. A tick that comes late tells how long the server stood still (the process was stopped, the
machine paused, a call took long): signs of life that came meanwhile lie unread in sockets. Sessions are given that time
back, and the tick after it is the first at which one may die, when the sockets have been read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dataplane_server.core.plane import DataPlane

_TICK_S = 0.025
_STALL_S = 0.1
"""A tick that is later than this tells of a stall; what is shorter happens when there is much to do."""


class Ticker:
    """Ticks as long as the core has something that can become due. settle: see Shell."""

    def __init__(self, plane: DataPlane, settle: Callable[[], None]) -> None:
        self._plane = plane
        self._settle = settle
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def see_to(self) -> None:
        """Begin to tick if need be."""
        if self._timer is None and not self._stopped and self._plane.next_due is not None:
            self._wind(time.monotonic())

    def stop(self) -> None:
        """Tick no more: nothing becomes due in a server that shuts down, which cuts its clients off."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _wind(self, now: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick, now + _TICK_S)

    def _tick(self, expected: float) -> None:
        now, due = time.monotonic(), self._plane.next_due
        self._timer = None
        if due is None:
            return
        self._wind(now)
        if now - expected > _STALL_S:
            self._plane.advance(expected, now - expected)
        elif due <= now:
            self._plane.advance(now)
        else:
            return
        self._settle()

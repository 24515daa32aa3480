"""Calls Advance every 25 ms while anything can become due.

While sessions are open or rows are delayed, nothing is late by more than that. A tick that comes late shows for how
long the server stood still (the process was stopped, the machine paused, a call took long). Heartbeats that arrived
meanwhile are unread in sockets. Sessions are given that time back, and none expires before the tick after it, when the
sockets have been read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dataplane_server.core.plane import DataPlane

_TICK_S = 0.025
_STALL_S = 0.1
"""A tick that is later than this is a stall; shorter delays are normal under load."""


class Ticker:
    """Ticks while the core has something that can become due. advance: receives the time and the length of a stall."""

    def __init__(self, plane: DataPlane, advance: Callable[[float, float], None]) -> None:
        self._plane = plane
        self._advance = advance
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def start_if_needed(self) -> None:
        """Begin to tick if something can become due."""
        if self._timer is None and not self._stopped and self._plane.next_due is not None:
            self._schedule(time.monotonic())

    def stop(self) -> None:
        """End: nothing becomes due in a server that shuts down."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, now: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick, now + _TICK_S)

    def _tick(self, expected: float) -> None:
        now, due = time.monotonic(), self._plane.next_due
        self._timer = None
        if due is None:
            return
        self._schedule(now)
        if now - expected > _STALL_S:
            self._advance(expected, now - expected)
        elif due <= now:
            self._advance(now, 0.0)

"""Calls Advance every 25 ms while anything can become due.

So a session expires, and a delayed row returns, at most 25 ms late. A late tick shows how long the event loop stalled
(the process was stopped, the machine paused, a call took long). Heartbeats that arrived meanwhile are still unread in
sockets, so every session gets that time back, and none expires before the next tick, when the sockets have been read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dataplane_server.core.plane import DataPlane

_TICK_S = 0.025
_STALL_S = 0.1
"""A tick that is later than this means a stall; shorter delays are normal under load."""


class Ticker:
    """A timer that runs while anything in the core can become due. advance(now, stalled_s): called when something is
    due, and after a stall (stalled_s > 0).
    """

    def __init__(self, plane: DataPlane, advance: Callable[[float, float], None], now: Callable[[], float]) -> None:
        self._plane = plane
        self._now = now
        self._advance = advance
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def start_if_needed(self) -> None:
        """Start the timer if something can become due."""
        if self._timer is None and not self._stopped and self._plane.next_due is not None:
            self._schedule(self._now())

    def stop(self) -> None:
        """Stop for good: nothing becomes due in a server that shuts down."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, now: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick, now + _TICK_S)

    def _tick(self, expected: float) -> None:
        now, due = self._now(), self._plane.next_due
        self._timer = None
        if due is None:
            return
        self._schedule(now)
        if now - expected > _STALL_S:
            self._advance(expected, now - expected)
        elif due <= now:
            self._advance(now, 0.0)

"""Measures how late the event loop runs callbacks. Every call waits that long before the server begins it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_EVERY_S = 0.25
_MOST = 240
"""Wake-ups of one stall that are reported: those of a minute."""


class LoopLag:
    """A periodic timer that reports by how many seconds it fired late: `start`, then `stop` once.

    A stall is reported for each wake-up that was due in it, so a long one counts for more than a short one.
    """

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_EVERY_S, self._wake, loop, loop.time() + _EVERY_S)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self, loop: asyncio.AbstractEventLoop, expected: float) -> None:
        late_s = max(loop.time() - expected, 0.0)
        for missed in range(min(1 + int(late_s / _EVERY_S), _MOST)):
            self._report(late_s - missed * _EVERY_S)
        self.start()

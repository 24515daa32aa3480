"""Measures how late the event loop runs callbacks. Every call waits that long before the server begins it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_EVERY_S = 0.25


class LoopLag:
    """A periodic timer that reports by how many seconds it fired late: `start`, then `stop` once."""

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
        self._report(max(loop.time() - expected, 0.0))
        self.start()

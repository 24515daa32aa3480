"""How long callbacks wait for the event loop: every call waits as long before anything is done for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_EVERY_S = 0.25


class LoopLag:
    """Asks the running event loop to be woken, again and again, and tells by how many seconds that came too late:
    `start`, then `stop` once.
    """

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_EVERY_S, self._wake, loop, loop.time() + _EVERY_S)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self, loop: asyncio.AbstractEventLoop, expected: float) -> None:
        self._tell(max(loop.time() - expected, 0.0))
        self.start()

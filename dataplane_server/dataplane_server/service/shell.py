"""Calls of the core, and waking whom they concern. Every part of the service that calls the core does it here, on one
event loop, so each call is atomic.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from dataplane_server.core.calls import Reservation, SessionDied, Waiting
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.state import draining
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.endless import EndlessCalls
from dataplane_server.service.session_streams import SessionStreams
from dataplane_server.service.ticker import Ticker
from dataplane_server.service.waiters import Waiters

T = TypeVar("T")

_TIDY_PAUSE_S = 0.0002


class Shell:
    """The core and the callers that wait for it."""

    def __init__(self, plane: DataPlane, metrics: Metrics) -> None:
        self.plane = plane
        self._metrics = metrics
        self.waiters = Waiters()
        self.endless = EndlessCalls()
        self.sessions = SessionStreams(self.endless)
        self._ticker = Ticker(plane, self.settle)
        self._tidies = False

    def settle(self) -> None:
        """Wake whom the last calls of the core concerned, and see to what they have put off."""
        for effect in self.plane.take_effects():
            if isinstance(effect, SessionDied):
                self.sessions.died(effect)
            else:
                self.waiters.wake(effect)
        self._ticker.see_to()
        if self.plane.untidy and not self._tidies:
            self._tidies = True
            asyncio.get_running_loop().call_later(_TIDY_PAUSE_S, self._tidy)

    def _tidy(self) -> None:
        """A little at a time, so that calls that come meanwhile hardly wait; ends when there is nothing left to do."""
        self.plane.tidy()
        self._tidies = self.plane.untidy
        if self._tidies:
            asyncio.get_running_loop().call_later(_TIDY_PAUSE_S, self._tidy)

    def settled(self, call: Callable[[], T]) -> T:
        """Call the core and wake whom it concerns, also when it refuses: a refused call may have taken an earlier
        attempt's place.
        """
        try:
            return call()
        finally:
            self.settle()

    def drain(self, now: float) -> None:
        """End every wait and every call without an end of its own; see DataPlane.drain."""
        self.plane.drain(now)
        self._ticker.stop()
        self.settle()
        self.endless.end_all(draining())

    async def room(self, begun: Reservation | Waiting, wait_s: float) -> Reservation:
        """The reservation of a begun write, now or within wait_s. The caller aborts the write when this raises."""
        if isinstance(begun, Reservation):
            return begun
        ticket, began = begun.ticket, time.monotonic()
        give_up = partial(self.settled, lambda: self.plane.give_up_write(ticket))
        try:
            return await self.waiters.wait(ticket, Reservation, wait_s, give_up)
        finally:
            self._metrics.put_waited(time.monotonic() - began)

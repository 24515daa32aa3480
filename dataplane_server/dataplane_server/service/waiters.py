"""Callers that wait: from tickets of the core to coroutines.

The core answers Waiting with a ticket. The coroutine sleeps here until the effect with that ticket comes, its deadline
passes, or its caller goes away. Everything happens on one event loop, so no two of these coincide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from dataplane_server.core.calls import Admitted, Failed, Grant, Granted, Reservation

T = TypeVar("T", Grant, Reservation)


class Waiters:
    """Sleeping coroutines by ticket."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Grant | Reservation]] = {}

    async def wait(self, ticket: int, kind: type[T], timeout_s: float, give_up: Callable[[int], Exception]) -> T:
        """Sleep until the ticket is answered. give_up(ticket) is called at the deadline and returns what to raise."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Grant | Reservation] = loop.create_future()
        self._futures[ticket] = future
        timer = loop.call_later(timeout_s, self._expire, ticket, future, give_up)
        try:
            answer = await future
        finally:
            timer.cancel()
            del self._futures[ticket]
        if not isinstance(answer, kind):
            raise TypeError(f"ticket {ticket} was answered with {type(answer).__name__}, not {kind.__name__}")
        return answer

    def wake(self, effect: Admitted | Granted | Failed) -> None:
        """Carry out an effect of the core."""
        future = self._futures.get(effect.ticket)
        if future is None or future.done():
            return  # a write that was streaming when it was superseded: it notices at its next chunk
        if isinstance(effect, Failed):
            future.set_exception(effect.refusal)
        elif isinstance(effect, Granted):
            future.set_result(effect.grant)
        else:
            future.set_result(effect.reservation)

    @staticmethod
    def _expire(ticket: int, future: asyncio.Future[Grant | Reservation], give_up: Callable[[int], Exception]) -> None:
        if not future.done():
            future.set_exception(give_up(ticket))

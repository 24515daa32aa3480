"""The coroutines of calls that wait, by ticket of the core.

The core answers such a call with a ticket (Waiting). Its coroutine waits here until the effect with that ticket comes,
its deadline passes, or it is cancelled. All of this runs on one event loop, so no two of these coincide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from dataplane_server.core.calls.answers import Admitted, Failed, Grant, Granted, Reservation

T = TypeVar("T", Grant, Reservation)


class Waiters:
    """Waiting coroutines by ticket."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Grant | Reservation]] = {}

    async def wait(self, ticket: int, kind: type[T], timeout_s: float, give_up: Callable[[int], Exception]) -> T:
        """Wait until the ticket is answered. At the deadline, call give_up(ticket) and raise what it returns."""
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
        """Wake the coroutine that an effect of the core concerns."""
        future = self._futures.get(effect.ticket)
        if future is None or future.done():
            return  # a superseded write that receives values: it checks its reservation at its next chunk
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

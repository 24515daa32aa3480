"""The coroutines of calls that wait, by ticket of the core.

The core answers such a call with a ticket (Waiting), which is expected here from then on: the effect with that ticket
may come before the call's coroutine does. This waits until the effect comes, its deadline passes, or it is cancelled.
All of this runs on one event loop, so no two of these coincide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dataplane_server.core.calls.answers import (
    Admitted,
    Answered,
    Drawn,
    Failed,
    Grant,
    Granted,
    Reservation,
    Reserved,
)
from dataplane_server.core.calls.refusal import Refusal

Answer = Grant | Reservation | Reserved | Drawn


class Waiters:
    """Waiting coroutines by ticket."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Answer]] = {}

    def expect(self, ticket: int) -> None:
        """An effect with this ticket follows; `wait` or `forget` ends that."""
        self._futures[ticket] = asyncio.get_running_loop().create_future()

    def forget(self, ticket: int) -> None:
        """Nothing will wait for this ticket. Unknown tickets are ignored."""
        self._futures.pop(ticket, None)

    async def wait(self, ticket: int, timeout_s: float, give_up: Callable[[int], Exception]) -> Any:
        """Wait until a ticket that is expected is answered. At the deadline, call give_up(ticket) and raise what it
        returns.
        """
        future = self._futures[ticket]
        timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, ticket, future, give_up)
        try:
            return await future
        finally:
            timer.cancel()
            self.forget(ticket)

    def wake(self, effect: Admitted | Granted | Answered | Failed) -> None:
        """Wake the coroutine that an effect of the core concerns."""
        future = self._futures.get(effect.ticket)
        if future is None or future.done():
            return  # a superseded write that receives values: it checks its reservation at its next chunk
        if isinstance(effect, Failed):
            future.set_exception(effect.refusal)
        elif isinstance(effect, Granted):
            future.set_result(effect.grant)
        elif isinstance(effect, Answered):
            future.set_result(effect.answer)
        else:
            future.set_result(effect.reservation)

    @staticmethod
    def _expire(ticket: int, future: asyncio.Future[Answer], give_up: Callable[[int], Exception]) -> None:
        if not future.done():
            try:
                future.set_exception(give_up(ticket))
            except Refusal as refusal:  # the log has ended
                future.set_exception(refusal)

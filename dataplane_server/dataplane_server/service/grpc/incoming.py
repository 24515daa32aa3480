"""Requests of unary calls over gRPC, as they arrive.

gRPC buffers a request of up to 20 MiB until its last byte is there. So each has a time to arrive in, and while many
calls wait for the rest of theirs, those that have waited for longest are ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.endless import Call, EndlessCalls
from dataplane_server.service.messages.frames import STALL_TIMEOUT_S

MAX_HALF_SENT = 32
_PATIENCE_S = 1.0
_LOOK_EVERY_S = 0.25


class IncomingRequests:
    """The calls whose requests are on their way, the oldest first."""

    def __init__(self, timeout_s: float = STALL_TIMEOUT_S, most: int = MAX_HALF_SENT) -> None:
        self._timeout_s = timeout_s
        self._most = most
        self._since: dict[Call, float] = {}
        self._calls = EndlessCalls()
        self._look: asyncio.TimerHandle | None = None  # again, at calls that are too many and not yet slow

    async def request(self, stream: AsyncIterator[bytes]) -> bytes:
        """The one message of a call. Refusal if it does not come, or not in time."""
        loop = asyncio.get_running_loop()
        with self._calls.running() as call:
            self._since[call] = loop.time()
            self._end_slow()
            late = Refusal(Reason.INVALID_REQUEST, f"the request did not arrive within {self._timeout_s:g} s")
            timer = loop.call_later(self._timeout_s, self._calls.end, call, late)
            try:
                return await stream.__anext__()
            except StopAsyncIteration:
                raise Refusal(Reason.INVALID_REQUEST, "the call ended without a request") from None
            finally:
                timer.cancel()
                self._since.pop(call, None)

    def _end_slow(self) -> None:
        """End the slow ones of too many calls. Looks again while they are too many, whether or not others come."""
        if len(self._since) <= self._most or self._look is not None:
            return
        loop = asyncio.get_running_loop()
        for call in list(self._since)[: len(self._since) - self._most]:
            if loop.time() - self._since[call] > _PATIENCE_S:
                message = f"more than {self._most} calls wait for the rest of their requests (max_half_sent)"
                del self._since[call]
                self._calls.end(call, Refusal(Reason.LIMIT_REACHED, message, max_half_sent=self._most))
        self._look = loop.call_later(_LOOK_EVERY_S, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._end_slow()

"""How many streams carry values into the server over gRPC at the same time, since each holds some megabytes.

Others wait in order, and beyond as many again a stream is refused at once. Puts that have come with all of their values
are no such streams. Commits have places of their own, so puts never hold them up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dataplane_server.core.calls.refusal import Reason, Refusal

MAX_STREAMS = 64


class ValueStreams:
    """Places for `most` streams, and for as many that wait."""

    def __init__(self, most: int = MAX_STREAMS) -> None:
        self._most = most
        self._free = asyncio.Semaphore(most)
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def place(self, wait_s: float) -> AsyncIterator[None]:
        """A block in which a stream is read. Refusal LIMIT_REACHED if there is no place within wait_s, in seconds."""
        if self._free.locked():
            await self._wait(wait_s)
        else:
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()

    async def _wait(self, wait_s: float) -> None:
        if self._waiting >= self._most:
            raise self._full()
        self._waiting += 1
        try:
            await asyncio.wait_for(self._free.acquire(), wait_s)
        except asyncio.TimeoutError:
            raise self._full() from None
        finally:
            self._waiting -= 1

    def _full(self) -> Refusal:
        message = (
            f"{self._most} streams carry values already, and {self._waiting} wait: try again, with fewer at a time"
        )
        return Refusal(Reason.LIMIT_REACHED, message, max_streams=self._most)

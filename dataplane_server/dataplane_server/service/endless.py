"""Calls that clients keep open: the heartbeats of a session, a watch on the server's health.

The server ends one of these calls when there is a reason, and all of them when it shuts down, so that shutdown does not
wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from typing import TypeVar, cast

from dataplane_server.core.calls.refusal import Refusal

Call = asyncio.Task[object]
"""The task in which gRPC runs a call identifies it."""
T = TypeVar("T")


class EndlessCalls:
    """The endless calls under way."""

    def __init__(self) -> None:
        self._calls: dict[Call, Refusal | None] = {}
        self._writing: set[Call] = set()
        self._over: Refusal | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Call]:
        """A block that `end` interrupts where it waits: the block then raises the reason."""
        if self._over is not None:
            raise self._over
        call = cast("Call", asyncio.current_task())  # a coroutine that awaits runs in a task
        self._calls[call] = None
        try:
            yield call
        except asyncio.CancelledError:
            why = self._calls[call]
            if why is None:  # the caller went away
                raise
            raise why from None
        finally:
            del self._calls[call]

    async def write(self, message: Awaitable[T]) -> T:
        """Wait for a message to be sent, within `running`. `end` interrupts the block after it, not within it: gRPC
        sends no status of a call whose first message it was told to forget halfway, so the caller would wait.
        """
        call = cast("Call", asyncio.current_task())
        self._writing.add(call)
        try:
            sent = await message
        finally:
            self._writing.discard(call)
        why = self._calls[call]
        if why is not None:
            raise why
        return sent

    def end(self, call: Call, why: Refusal) -> None:
        """End a call, unless it has ended or is ending."""
        if call in self._calls and self._calls[call] is None:
            self._calls[call] = why
            if call not in self._writing:
                call.cancel()

    def end_all(self, why: Refusal) -> None:
        """End all calls, and refuse later ones."""
        self._over = why
        for call in self._calls:
            self.end(call, why)

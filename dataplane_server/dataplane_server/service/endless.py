"""Calls that have no end of their own: a session's heartbeats, a watch on the server's health.

Their callers keep them open for as long as there is a server, so it is the server that ends them: for a reason that
concerns one of them, or all at once when it shuts down, which nobody should have to wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import cast

from dataplane_server.core.calls.refusal import Refusal

Call = asyncio.Task[object]
"""A call is known by the task that gRPC runs it in."""


class EndlessCalls:
    """The endless calls under way."""

    def __init__(self) -> None:
        self._calls: dict[Call, Refusal | None] = {}
        self._over: Refusal | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Call]:
        """A block that `end` cuts short where it waits: the reason leaves the block as the exception."""
        if self._over is not None:
            raise self._over
        call = cast("Call", asyncio.current_task())  # whatever awaits runs in a task
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

    def end(self, call: Call, why: Refusal) -> None:
        """End a call, unless it is ending already."""
        if call in self._calls and self._calls[call] is None:
            self._calls[call] = why
            call.cancel()

    def end_all(self, why: Refusal) -> None:
        """End all calls, and those that come later."""
        self._over = why
        for call in self._calls:
            self.end(call, why)

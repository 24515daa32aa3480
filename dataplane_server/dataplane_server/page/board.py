"""The state that all viewers of the page see: computed once for them, as events of a stream.

A snapshot is made of parts. A part that is as before is not sent again, so a viewer gets all parts when it comes, and
then those that have changed. A snapshot is computed in steps of some two milliseconds, and calls are served between
them. One is made each second, or less often where that would take more than 0.7 % of a core; none while no
page is open. A viewer that does not read holds one list of parts, which all others have, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import NamedTuple

from dataplane_server.collection import without_collection

PERIOD_S = 1.0
_SHARE = 0.007
"""Of a core, that snapshots may take; to send them to one viewer takes less than half as much again."""
_TURN_S = 0.002

_TOGETHER = 16
"""Parts that are sent in one write."""

Pieces = Iterator[tuple[str, object]]
"""Names of parts, and what they say as JSON; UNCHANGED for a part that says what it did."""
UNCHANGED = object()


class _Part(NamedTuple):
    number: int
    event: bytes


class Board:
    """The parts, and the task that renews them. pieces: begins a snapshot; True asks for all parts, none of them
    UNCHANGED. most_bytes: of all parts; further ones are left out, and their number is told.
    """

    def __init__(
        self, pieces: Callable[[bool], Awaitable[Pieces]], most_bytes: int, period_s: float = PERIOD_S
    ) -> None:
        self.viewers = 0
        self.worked_s = 0.0
        self._pieces = pieces
        self._most_bytes = most_bytes
        self._period_s = period_s
        self._known: dict[str, _Part] = {}
        self._shown: dict[str, _Part] = {}
        self._number = 0
        self._renewed = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._closed = False

    async def watch(self, seconds: float) -> AsyncGenerator[bytes, None]:
        """Events for one viewer, several at a time, for so long."""
        loop = asyncio.get_running_loop()
        until, seen = loop.time() + seconds, 0
        self.viewers += 1
        try:
            if self._renewing is None or self._renewing.done():
                self._renewing = asyncio.create_task(self._renew())
            while loop.time() < until and not self._closed:
                news = [part for part in self._shown.values() if part.number > seen]
                renewed, seen = self._renewed, max((part.number for part in news), default=seen)
                for start in range(0, len(news), _TOGETHER):
                    yield b"".join([part.event for part in news[start : start + _TOGETHER]])
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(renewed.wait(), until - loop.time())
                if self._renewing.done() and not self._closed:
                    self._renewing.result()  # it has failed: the viewer's request fails with it
        finally:
            self.viewers -= 1

    async def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._renewed.set()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    async def _renew(self) -> None:
        """Make snapshots while there are viewers."""
        while self.viewers:
            began, before = time.monotonic(), self.worked_s
            await self._snapshot()
            pause_s = max(self._period_s, (self.worked_s - before) / _SHARE)
            await asyncio.sleep(max(pause_s - (time.monotonic() - began), 0.0))
        self._known, self._shown = {}, {}

    async def _snapshot(self) -> None:
        """Read the state in steps, then show it at once."""
        pieces, ended, parts = await self._pieces(not self._known), False, dict[str, _Part]()
        self._number += 1
        while not ended:
            began, used_s, ended = time.monotonic(), time.thread_time(), True
            with without_collection():  # a snapshot allocates enough to start one, and frees all of it soon
                for name, content in pieces:
                    known = self._known
                    parts[name] = known[name] if content is UNCHANGED else self._part(name, content, known.get(name))
                    if time.monotonic() - began >= _TURN_S:
                        ended = False
                        break
            self.worked_s += time.thread_time() - used_s
            await asyncio.sleep(0)
        self._known, self._shown = parts, self._within_bounds(parts)
        renewed, self._renewed = self._renewed, asyncio.Event()
        renewed.set()

    def _part(self, name: str, content: object, before: _Part | None) -> _Part:
        data = json.dumps({"part": name, "says": content}, separators=(",", ":"))
        event = f"data:{data}\n\n".encode()
        return before if before is not None and before.event == event else _Part(self._number, event)

    def _within_bounds(self, parts: dict[str, _Part]) -> dict[str, _Part]:
        kept, size = dict[str, _Part](), 0
        for name, part in parts.items():
            size += len(part.event)
            if size <= self._most_bytes:
                kept[name] = part
        counts = {"parts": list(kept), "left_out": len(parts) - len(kept)}
        return {**kept, "shown": self._part("shown", counts, self._shown.get("shown"))}

"""Connections of the gateway: few at a time, each for one request.

When another one comes, it waits, before any handshake, and the connection whose request has been on its way for longest
is closed, if that is longer than a second. So callers that send half a request, or no handshake, keep no others out,
however many they are. Those that do not read their answer lose it after a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import OrderedDict
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 64
MAX_WAITING = 1024
HEAD_S = 10.0
ANSWER_S = 60.0
_PATIENCE_S = 1.0


class Places:
    """Which connections are served, and which wait for that, the oldest first. All of one gateway."""

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self._most = most
        self._served: OrderedDict[Connection, float] = OrderedDict()
        self._waiting: OrderedDict[Connection, None] = OrderedDict()
        self._next_look: asyncio.TimerHandle | None = None

    def come(self, connection: Connection) -> None:
        self._waiting[connection] = None
        if len(self._waiting) > MAX_WAITING:
            connection.abort()
        self._fill()

    def go(self, connection: Connection) -> None:
        self._served.pop(connection, None)
        self._waiting.pop(connection, None)
        self._fill()

    def close(self) -> None:
        """End the connections of which uvicorn does not know yet."""
        for connection in [*self._waiting, *self._served]:
            if not connection.is_open:
                connection.abort()

    def _fill(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()  # each would lead to others, as long as somebody waits
        now = asyncio.get_running_loop().time()
        while self._waiting and len(self._served) < self._most:
            connection, _ = self._waiting.popitem(last=False)
            self._served[connection] = now
            connection.begin()
        if self._waiting:
            slowest = next((one for one in self._served if one.is_arriving), None)
            if slowest is not None and now - self._served[slowest] > _PATIENCE_S:
                slowest.abort()
            self._next_look = asyncio.get_running_loop().call_later(_PATIENCE_S / 4, self._fill)


class Connection(H11Protocol):
    """A connection of uvicorn's, opened when there is a place for it."""

    places: Places
    _peer: socket.socket
    _opening: asyncio.Task[None] | None = None
    _until_read: asyncio.TimerHandle | None = None

    def come(self, peer: socket.socket) -> None:
        self._peer = peer
        self.places.come(self)

    def begin(self) -> None:
        self._opening = self.loop.create_task(self._open())
        self.loop.call_later(HEAD_S, self._end_without_head)

    async def _open(self) -> None:
        try:
            with contextlib.suppress(OSError):  # a handshake that fails is the peer's affair
                await self.loop.connect_accepted_socket(lambda: self, self._peer, ssl=self.config.ssl)
        finally:
            if not self.is_open:
                self.places.go(self)

    def abort(self) -> None:
        if self.is_open:
            self.transport.abort()
        elif self._opening is not None:
            self._opening.cancel()
        else:
            self._peer.close()
            self.places.go(self)

    @property
    def is_open(self) -> bool:
        """Whether it was opened, with any handshake."""
        transport: Any = self.transport  # None at first, whatever its annotation says
        return transport is not None

    @property
    def is_arriving(self) -> bool:
        """Whether its request is not all here."""
        cycle: Any = self.cycle  # None at first, whatever its annotation says
        return cycle is None or bool(cycle.more_body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._until_read = self.loop.call_later(ANSWER_S, self.transport.abort)  # it waits, closing, for a reader

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._until_read is not None:
            self._until_read.cancel()
        self.places.go(self)

    def _end_without_head(self) -> None:
        cycle: Any = self.cycle
        if cycle is None:
            self.abort()

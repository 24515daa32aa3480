"""Serves an aiohttp application on a port, beside the calls of the server.

A connection serves one request and lives for a bounded time; few are open at the same time, others wait in the system's
queue. So clients that send half a request, or do not read what they asked for, hold little and not for long.

In front of every route it is asked who has opened the connection, once, before anything is read, and whether the
request calls this server by a name of its own.

When another connection waits for a place, the one whose request has been on its way for longest is closed, if that is
longer than a second. So clients that send half a request keep no others out, however many they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from dataplane_server.accepting import accepting, tcp_listener
from dataplane_server.access.gate import Gate
from dataplane_server.access.hosts import OwnHosts
from dataplane_server.access.http import stranger
from dataplane_server.access.tls import Tls
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.http_answers import error_answer
from dataplane_server.log import get_log
from dataplane_server.service.error_table import status_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
R = TypeVar("R", bound=web.StreamResponse)

_BACKLOG = 128
_PAUSE_S = 0.02
_HANDSHAKE_S = 5.0
_PATIENCE_S = 1.0
_PORTS_TRIED = 16
_NOT_OF_THIS_HOST = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""A name may have such addresses, as localhost has ::1 in a container without IPv6."""


class HttpListener:
    """A listener on the running event loop: `start`, then `stop`. most: connections at the same time. max_s: how long
    each may last, in seconds. tls: None for plain HTTP.
    """

    def __init__(self, most: int, max_s: float, gate: Gate, tls: Tls | None = None) -> None:
        self._most = most
        self._max_s = max_s
        self._gate = gate
        self._tls = tls
        self._strangers: dict[RequestHandler, str | None] = {}  # of each connection, see `Gate.stranger`
        self._opening: dict[RequestHandler, asyncio.Task[None]] = {}
        self._arriving: dict[RequestHandler, float] = {}
        """The connections whose requests are on their way, and since when, the oldest first."""
        self._runner: web.AppRunner | None = None
        self._accepting: list[asyncio.Task[None]] = []

    async def start(self, app: web.Application, host: str, port: int) -> int:
        """Listen. Returns the port; the system chooses one for port 0. Raises OSError."""
        app.middlewares.insert(0, self._front(OwnHosts(host)))
        self._runner = web.AppRunner(app, access_log=None, logger=_RequestLog("dataplane_server.http"))
        await self._runner.setup()
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listeners = _listeners([(family, str(address[0])) for family, *_, address in dict.fromkeys(found)], port)
        self._accepting += [accepting(listener, "http", self._serve) for listener in listeners]
        chosen: int = listeners[0].getsockname()[1]
        return chosen

    async def stop(self) -> None:
        await _cancelled(self._accepting)
        await _cancelled(self._opening.values())
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, peer: socket.socket) -> None:
        """Begin to serve a connection when there is a place for it."""
        server = None if self._runner is None else self._runner.server
        if server is None:
            return peer.close()
        try:
            await self._place(server)
        except asyncio.CancelledError:
            peer.close()
            raise
        loop, connection = asyncio.get_running_loop(), server()
        self._strangers[connection] = self._gate.stranger(peer)
        self._arriving[connection] = loop.time()
        self._opening[connection] = opening = loop.create_task(self._open(connection, peer))
        opening.add_done_callback(lambda _: self._opening.pop(connection))
        loop.call_later(self._max_s, self._end, connection)
        return None

    async def _place(self, server: web.Server) -> None:
        """Wait for a place, and close the connection whose request takes longest, if it takes too long."""
        now = asyncio.get_running_loop().time
        while len(server.connections) + len(self._opening) >= self._most:
            open_ones = {*server.connections, *self._opening}
            slowest = next((one for one in self._arriving if one in open_ones), None)
            if slowest is not None and now() - self._arriving[slowest] > _PATIENCE_S:
                self._close(slowest)
            await asyncio.sleep(_PAUSE_S)  # aiohttp has no event

    async def _open(self, connection: RequestHandler, peer: socket.socket) -> None:
        """Begin a connection, with a handshake if there is TLS; one that fails is the peer's affair."""
        context, limit = (None, None) if self._tls is None else (self._tls.http_context(), _HANDSHAKE_S)
        connect = asyncio.get_running_loop().connect_accepted_socket
        with contextlib.suppress(OSError):
            await connect(lambda: connection, peer, ssl=context, ssl_handshake_timeout=limit)

    def _close(self, connection: RequestHandler) -> None:
        self._arriving.pop(connection, None)
        if connection.transport is not None:
            connection.transport.abort()
        elif connection in self._opening:
            self._opening[connection].cancel()

    def _end(self, connection: RequestHandler) -> None:
        self._close(connection)
        del self._strangers[connection]

    def _front(self, own: OwnHosts) -> Any:
        """What every request passes first."""

        @web.middleware
        async def front(request: web.Request, handler: Handler) -> web.StreamResponse:
            stranger.set(self._strangers.get(request.protocol, "its connection has ended"))
            try:
                if not self._gate.asks_for_credentials:
                    own.check(request.headers.get("Host"), request.headers.get("Origin"), secure=request.secure)
            except Refusal as refusal:
                return error_answer(status_of(refusal))
            if not request.can_read_body:  # all of it is here, so its connection keeps its place
                self._arriving.pop(request.protocol, None)
            try:
                return await handler(request)
            except web.HTTPException as answer:  # such as 404
                answer.force_close()
                raise

        return front


async def _cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their ends."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def only(response: R) -> R:
    """A response that ends its connection."""
    response.force_close()
    return response


def _listeners(
    places: Sequence[tuple[socket.AddressFamily, str]], port: int, tries: int = _PORTS_TRIED
) -> list[socket.socket]:
    """One at each address that this host has, all at the same port. OSError."""
    opened: list[socket.socket] = []
    missing = None
    for family, host in places:
        try:
            opened.append(_listener(family, (host, opened[0].getsockname()[1] if opened else port)))
        except OSError as error:  # noqa: PERF203  # two at most, as a rule
            if error.errno in _NOT_OF_THIS_HOST:
                missing = error
                continue
            for listener in opened:
                listener.close()
            if opened and not port and error.errno == errno.EADDRINUSE and tries > 1:
                return _listeners(places, port, tries - 1)  # what the system chose is free at the first address only
            raise
    if missing is not None and not opened:
        raise missing
    return opened


def _listener(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    try:
        listener = tcp_listener(family, address, _BACKLOG)
    except OSError as error:
        text = f"cannot listen on {address}: {os.strerror(error.errno or 0).lower()}"
        raise OSError(error.errno, text) from None
    listener.setblocking(False)
    return listener


class _RequestLog(logging.Logger):
    """What aiohttp logs, as events. A request that is not HTTP is its sender's fault, so its event has no stack."""

    def __init__(self, name: str) -> None:
        super().__init__(name, logging.INFO)

    def handle(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            why = f"{record.getMessage()}: it is not HTTP/1.1, as if a gRPC client had the wrong port"
            get_log().info("http_request_refused", why=why)
        else:
            get_log().error("http_request_failed", why=record.getMessage(), exc_info=error)

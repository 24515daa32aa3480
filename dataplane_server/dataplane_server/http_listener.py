"""Serves an aiohttp application on a port, beside the calls of the server.

A connection serves one request and lives for a bounded time; few are open at the same time, others wait in the system's
queue. So clients that send half a request, or do not read what they asked for, hold little and not for long.

In front of every route it is asked who has opened the connection, once, before anything is read, and whether the
request calls this server by a name of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dataplane_server.accepting import accepting
from dataplane_server.access.gate import Gate
from dataplane_server.access.hosts import OwnHosts
from dataplane_server.access.http import STRANGER
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.observe.log import get_log

if TYPE_CHECKING:
    import ssl

    from aiohttp import web

    from dataplane_server.access.tls import Tls

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

R = TypeVar("R", bound="web.StreamResponse")

_BACKLOG = 128
_PAUSE_S = 0.02
_HANDSHAKE_S = 5.0


class HttpListener:
    """A listener on the running event loop: `start`, then `stop`. name: its name in the log. most: connections at the
    same time. max_s: how long each may last, in seconds. tls: None for plain HTTP.
    """

    def __init__(self, name: str, most: int, max_s: float, gate: Gate, tls: Tls | None = None) -> None:
        self._name = name
        self._most = most
        self._max_s = max_s
        self._gate = gate
        self._tls = tls
        self._strangers: dict[asyncio.BaseProtocol, str | None] = {}  # of each connection, see `Gate.stranger`
        self._handshakes: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None
        self._accepting: list[asyncio.Task[None]] = []

    async def start(self, app: web.Application, host: str, port: int, **options: Any) -> int:
        """Listen. Returns the port; the system chooses one for port 0. options: of aiohttp's runner. Raises OSError."""
        from aiohttp import web

        app.middlewares.insert(0, self._front(OwnHosts(host)))
        self._runner = web.AppRunner(app, access_log=None, logger=_RequestLog("dataplane_server.http"), **options)
        await self._runner.setup()
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, *_, address in dict.fromkeys(found):
            listener = _listener(family, (str(address[0]), port))
            port = listener.getsockname()[1]
            self._accepting.append(accepting(listener, self._name, self._serve))
        return port

    async def stop(self) -> None:
        ending = [*self._accepting, *self._handshakes]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, peer: socket.socket) -> None:
        """Serve a connection. Returns when another one may be open beside it."""
        server = None if self._runner is None else self._runner.server
        if server is None:
            return peer.close()
        if self._tls is None:
            await self._open(server, peer)
        else:
            handshake = asyncio.create_task(self._open(server, peer, self._tls.http_context()))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)
        while len(server.connections) + len(self._handshakes) >= self._most:  # noqa: ASYNC110  # aiohttp has no event
            await asyncio.sleep(_PAUSE_S)
        return None

    async def _open(self, server: web.Server, peer: socket.socket, context: ssl.SSLContext | None = None) -> None:
        """Begin a connection, with a handshake if there is a context; one that fails is the peer's affair."""
        loop, limit, protocol = asyncio.get_running_loop(), None if context is None else _HANDSHAKE_S, server()
        self._strangers[protocol] = self._gate.stranger(peer)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, peer, ssl=context, ssl_handshake_timeout=limit
            )
        except OSError:
            del self._strangers[protocol]
        else:
            loop.call_later(self._max_s, self._end, transport, protocol)

    def _end(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        transport.abort()
        del self._strangers[protocol]

    def _front(self, own: OwnHosts) -> Any:
        """What every request passes first."""
        from aiohttp import web

        from dataplane_server.http_door.answers import error_answer
        from dataplane_server.service.error_table import status_of

        @web.middleware
        async def front(request: web.Request, handler: Handler) -> web.StreamResponse:
            request[STRANGER] = self._strangers[request.protocol]
            try:
                if not self._gate.asks_for_credentials:
                    own.check(request.headers.get("Host"), request.headers.get("Origin"), secure=request.secure)
            except Refusal as refusal:
                return error_answer(status_of(refusal))
            return await handler(request)

        return front


def only(response: R) -> R:
    """A response that ends its connection."""
    response.force_close()
    return response


def _listener(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    try:
        listener = socket.create_server(address, family=family, backlog=_BACKLOG)
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
        from aiohttp.http import HttpProcessingError

        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            why = f"{record.getMessage()}: it is not HTTP/1.1, as if a gRPC client had the wrong port"
            get_log().info("http_request_refused", why=why)
        else:
            get_log().error("http_request_failed", why=record.getMessage(), exc_info=error)

"""The HTTP listener: `/metrics` for Prometheus, `/healthz` for probes that cannot use gRPC, `/` with links to both.

A connection serves one request and lives for ten seconds at most; few are open at the same time, others wait in the
system's queue. So clients that send half a request, or do not read what they asked for, hold little and not for long.

aiohttp is imported when the listener starts, so a server without one saves 12 MB and a tenth of a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST

from dataplane_server.accepting import accept_forever
from dataplane_server.observe.log import get_log
from dataplane_server.observe.metrics import Metrics
from dataplane_server.version import VERSION

if TYPE_CHECKING:
    from aiohttp import web

_HOME = f"""<!doctype html><title>RL Data Plane</title>
<h1>RL Data Plane {VERSION}</h1>
<p><a href="/metrics">/metrics</a> for Prometheus
<p><a href="/healthz">/healthz</a>: 200 while the server accepts calls, 503 while it drains
<p>On the server's host, <code>dataplane --server ADDRESS top</code> shows partitions and tasks. Clients connect to the
gRPC address that the server printed at its start, not to this port.
"""
MAX_CONNECTIONS = 32
MAX_SECONDS = 10.0
_BACKLOG = 128
_PAUSE_S = 0.02


class HttpSide:
    """An HTTP listener on the running event loop. healthy: whether the server accepts calls. max_s: how long a
    connection may last, in seconds.
    """

    def __init__(self, metrics: Metrics, healthy: Callable[[], bool], max_s: float = MAX_SECONDS) -> None:
        self._metrics = metrics
        self._healthy = healthy
        self._max_s = max_s
        self._runner: web.AppRunner | None = None
        self._accepting: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port; the system chooses one for port 0. Raises OSError."""
        from aiohttp import web

        app = web.Application()
        app.add_routes(
            [
                web.get("/", self._serve_home),
                web.get("/metrics", self._serve_metrics),
                web.get("/healthz", self._serve_health),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, logger=_RequestLog("dataplane_server.http"))
        await self._runner.setup()
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, *_, address in dict.fromkeys(found):
            listener = _listener(family, (str(address[0]), port))
            port = listener.getsockname()[1]
            self._accepting.append(asyncio.create_task(accept_forever(listener, "http", self._serve)))
        return port

    async def stop(self) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve_home(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return _only(web.Response(text=_HOME, content_type="text/html"))

    async def _serve(self, peer: socket.socket) -> None:
        """Serve a connection. Returns when another one may be open beside it."""
        loop, server = asyncio.get_running_loop(), None if self._runner is None else self._runner.server
        if server is None:
            return peer.close()
        transport, _ = await loop.connect_accepted_socket(server, peer)
        loop.call_later(self._max_s, transport.abort)
        while len(server.connections) >= MAX_CONNECTIONS:  # noqa: ASYNC110  # aiohttp has no event for their end
            await asyncio.sleep(_PAUSE_S)
        return None

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return _only(web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST}))

    async def _serve_health(self, request: web.Request) -> web.Response:
        from aiohttp import web

        healthy = self._healthy()
        return _only(web.Response(text="ok\n" if healthy else "draining\n", status=200 if healthy else 503))


def _listener(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    try:
        listener = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        text = f"cannot listen on {address}: {os.strerror(error.errno or 0).lower()}"
        raise OSError(error.errno, text) from None
    listener.setblocking(False)
    return listener


def _only(response: web.Response) -> web.Response:
    """A response that ends its connection."""
    response.force_close()
    return response


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

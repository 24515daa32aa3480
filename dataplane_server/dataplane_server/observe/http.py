"""The HTTP listener: `/metrics` for Prometheus, `/healthz` for probes that cannot use gRPC, `/` with links to both.

A connection lives for ten seconds at most; see `http_listener`.

aiohttp is imported when the listener starts, so a server without one saves 12 MB and a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST

from dataplane_server.http_listener import HttpListener, only
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


class HttpSide:
    """An HTTP listener on the running event loop. healthy: whether the server accepts calls. max_s: how long a
    connection may last, in seconds.
    """

    def __init__(self, metrics: Metrics, healthy: Callable[[], bool], max_s: float = MAX_SECONDS) -> None:
        self._metrics = metrics
        self._healthy = healthy
        self._listener = HttpListener("http", MAX_CONNECTIONS, max_s)

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
        return await self._listener.start(app, host, port)

    async def stop(self) -> None:
        await self._listener.stop()

    async def _serve_home(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return only(web.Response(text=_HOME, content_type="text/html"))

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return only(web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST}))

    async def _serve_health(self, request: web.Request) -> web.Response:
        from aiohttp import web

        healthy = self._healthy()
        return only(web.Response(text="ok\n" if healthy else "draining\n", status=200 if healthy else 503))

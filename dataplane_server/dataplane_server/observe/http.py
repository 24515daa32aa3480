"""The HTTP listener: `/metrics` for Prometheus, `/healthz` for probes that cannot use gRPC, `/` with links to both.

aiohttp is imported when the listener starts, so a server without one saves 12 MB and a tenth of a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST

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


class HttpSide:
    """An HTTP listener on the running event loop. healthy: whether the server accepts calls."""

    def __init__(self, metrics: Metrics, healthy: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._healthy = healthy
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port; the system chooses one for port 0."""
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
        await web.TCPSite(self._runner, host, port).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve_home(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(text=_HOME, content_type="text/html")

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _serve_health(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(text="ok\n") if self._healthy() else web.Response(text="draining\n", status=503)


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

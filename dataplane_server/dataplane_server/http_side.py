"""The HTTP listener: `/metrics` for Prometheus, `/healthz` for probes that cannot use gRPC, `/` for people.

A connection lives for ten seconds at most; see `http_listener`. Metrics are written in parts, and calls are served
between them. A scraper gets the next part when it has read the last, so it costs the same memory whether it reads or
not; few scrapes go on at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from dataplane_server.access.gate import OPEN_GATE, Gate
from dataplane_server.access.http import caller_of
from dataplane_server.access.roles import METRICS
from dataplane_server.access.tls import Tls
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.http_listener import Handler, HttpListener, only
from dataplane_server.observe.metrics import Metrics
from dataplane_server.page.page import Page

MAX_CONNECTIONS = 32
MAX_SCRAPES = 4
MAX_SECONDS = 10.0


class HttpSide:
    """An HTTP listener on the running event loop. healthy: whether the server accepts calls. unhealthy: what is wrong
    with a server that does, for people: a restart would not help it, so /healthz answers 200 nevertheless. max_s: how
    long a connection may last, in seconds. gate: beside an access file, only /healthz answers callers that it does not
    know, and metrics need a role for every partition, whose names they tell. tls: None for plain HTTP. page: what
    people see; None for nothing.
    """

    def __init__(
        self,
        metrics: Metrics,
        healthy: Callable[[], bool],
        max_s: float = MAX_SECONDS,
        gate: Gate = OPEN_GATE,
        tls: Tls | None = None,
        unhealthy: Callable[[], Sequence[str]] = list,
        page: Page | None = None,
    ) -> None:
        self._metrics = metrics
        self._healthy = healthy
        self._unhealthy = unhealthy
        self._scrapes = 0
        self._gate = gate
        self._page = page
        self._listener = HttpListener(MAX_CONNECTIONS, max_s, gate, tls)

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port; the system chooses one for port 0. Raises OSError."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._guarded(self._serve_metrics)),
                web.get("/healthz", self._serve_health),
                *([] if self._page is None else self._page.routes(self._guarded)),
            ]
        )
        return await self._listener.start(app, host, port)

    async def stop(self) -> None:
        if self._page is not None:
            await self._page.stop()
        await self._listener.stop()

    def _guarded(self, serve: Handler) -> Handler:
        async def serve_known(request: web.Request) -> web.StreamResponse:
            try:
                if self._gate.asks_for_credentials and not caller_of(request, self._gate).may(METRICS):
                    text = "metrics cover every partition: they need role 'reader' or 'admin' for the prefix ''\n"
                    return only(web.Response(text=text, status=403))
            except Refusal as refusal:
                headers = {"WWW-Authenticate": "Bearer"}
                return only(web.Response(text=f"{refusal.message}\n", status=401, headers=headers))
            return await serve(request)

        return serve_known

    async def _serve_metrics(self, request: web.Request) -> web.StreamResponse:
        if self._scrapes >= MAX_SCRAPES:
            text = f"{MAX_SCRAPES} scrapes are under way; scrape again when one has ended, and less often\n"
            return only(web.Response(text=text, status=503, headers={"Retry-After": "1"}))
        self._scrapes += 1
        try:
            return await self._scrape(request, only(web.StreamResponse(headers={"Content-Type": CONTENT_TYPE_LATEST})))
        finally:
            self._scrapes -= 1

    async def _scrape(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        with contextlib.suppress(ConnectionError):  # the scraper has gone, or was out of time
            await response.prepare(request)
            for part in self._metrics.turns():
                await response.write(part)
                await asyncio.sleep(0)
        return response

    async def _serve_health(self, request: web.Request) -> web.Response:
        if not self._healthy():
            return only(web.Response(text="draining\n", status=503))
        reasons = self._unhealthy()
        named = [] if self._gate.asks_for_credentials else reasons  # they name clients
        return only(web.Response(text="\n".join(["not healthy" if reasons else "ok", *named, ""])))

"""The routes of the page, below the rules of the HTTP listener.

`/` and the files that it needs tell nothing of the server. `/page/events` tells what metrics tell and more, and needs
what `/metrics` needs. What is in rows needs a role for their partition; without an access file, the rules of gRPC on
loopback hold.

A stream ends before the listener would end its connection, and the page asks for the next one. So a token that has
ended, or a viewer that has gone, counts for seconds only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from importlib.resources import files

from aiohttp import web

from dataplane_server.access.gate import Gate
from dataplane_server.access.http import caller_of
from dataplane_server.access.roles import Caller
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.http_answers import error_answer
from dataplane_server.http_listener import Handler, only
from dataplane_server.observe.metrics import Metrics
from dataplane_server.page.board import Board
from dataplane_server.page.samples import Samples
from dataplane_server.page.state import StateReader
from dataplane_server.service.error_table import status_of
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.service.shell import Shell

MAX_VIEWERS = 8
MAX_BYTES = 2 << 20
"""Of a snapshot."""
WATCH_S = 8.0
"""How long a stream lasts; less than connections live."""
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_SAFE = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Page:
    """The page of one server."""

    def __init__(self, reader: StateReader, samples: Samples, shell: Shell, gate: Gate) -> None:
        self.board = Board(reader.pieces, MAX_BYTES)
        self._samples = samples
        self._shell = shell
        self._gate = gate
        self._assets = {
            file.name: (file.read_bytes(), _TYPES[file.name.rpartition(".")[2]])
            for file in files("dataplane_server.page").joinpath("assets").iterdir()
        }

    def routes(self, guarded: Callable[[Handler], Handler]) -> list[web.RouteDef]:
        """guarded: serves only who may see metrics."""
        return [
            web.get("/", self._serve_home),
            web.get("/page/events", guarded(self._serve_events)),
            web.get("/page/samples", self._serve_samples),
            web.get("/page/dead", self._serve_dead),
            web.get("/page/sample", self._serve_sample),
            web.get("/page/{name}", self._serve_asset),
        ]

    async def stop(self) -> None:
        await self.board.close()

    # -- files ---------------------------------------------------------------------------------------------------------

    async def _serve_home(self, request: web.Request) -> web.Response:
        """The page: it asks for a token where one is missing, as the status says."""
        known = True
        if self._gate.asks_for_credentials:
            try:
                caller_of(request, self._gate)
            except Refusal:
                known = False
        return self._asset("index.html", 200 if known else 401)

    async def _serve_asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return self._asset(name, 200) if name in self._assets else only(web.Response(status=404))

    def _asset(self, name: str, status: int) -> web.Response:
        body, kind = self._assets[name]
        return only(web.Response(body=body, status=status, content_type=kind, charset="utf-8", headers=_SAFE))

    # -- the stream ----------------------------------------------------------------------------------------------------

    async def _serve_events(self, request: web.Request) -> web.StreamResponse:
        if self.board.viewers >= MAX_VIEWERS:
            text = f"{MAX_VIEWERS} pages are open, which is the limit; close one\n"
            return only(web.Response(text=text, status=503, headers={"Retry-After": "5"}))
        response = only(web.StreamResponse(headers={**_SAFE, "Content-Type": "text/event-stream"}))
        with contextlib.suppress(ConnectionError):  # the viewer has gone, or did not read
            async with contextlib.aclosing(self.board.watch(WATCH_S)) as events:
                await response.prepare(request)
                async for event in events:
                    await response.write(event)
        return response

    # -- rows ----------------------------------------------------------------------------------------------------------

    async def _serve_samples(self, request: web.Request) -> web.Response:
        asked = request.query
        page = asked.get("page", "0")
        number = int(page) if page.isascii() and page.isdigit() and len(page) < 19 else 0
        return await self._answered(
            request,
            lambda caller: self._samples.listed(
                caller, _named(request), asked.get("task", ""), asked.get("state", ""), asked.get("group", ""), number
            ),
        )

    async def _serve_dead(self, request: web.Request) -> web.Response:
        task = request.query.get("task", "")
        return await self._answered(request, lambda caller: self._samples.dead(caller, _named(request), task))

    async def _serve_sample(self, request: web.Request) -> web.Response:
        sample_id = request.query.get("id", "")
        return await self._answered(request, lambda caller: self._samples.sample(caller, _named(request), sample_id))

    async def _answered(
        self, request: web.Request, read: Callable[[Caller], Awaitable[dict[str, object]]]
    ) -> web.Response:
        try:
            text = json.dumps(await read(caller_of(request, self._gate)))
            answer = only(web.Response(text=text, content_type="application/json", headers=_SAFE))
        except Refusal as refusal:
            answer = error_answer(status_of(refusal))
        await self._shell.stable()
        return answer


def open_page(
    servicer: DataPlaneServicer, shell: Shell, metrics: Metrics, serving: Callable[[], bool], gate: Gate
) -> Page:
    """The page of the server that has these parts."""
    reader = StateReader(shell.plane, servicer, metrics, serving, shell.now)
    return Page(reader, Samples(shell.plane, servicer, shell.now), shell, gate)


def _named(request: web.Request) -> str:
    return request.query.get("partition", "")

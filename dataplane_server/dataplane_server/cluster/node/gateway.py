"""The Unix socket of a node: it gives clients the memory of the node, and fetches for them what lies on other nodes.

Clients make all other calls at the coordinator, by connections that join the sessions that begin here. The coordinator
hears of these sessions by the node's line: when a client attaches, what it lets go, and that it has gone. If the line
ends, so do the calls of the clients, who attach again. But a client that has attached stays a *former* client until it
closes its lifeline, as until then it may use the memory that it mapped.

While there is no line, connections are closed before any answer. So clients know that a server is about to be there,
and try again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dataplane_server.access.peers import AllowedPeers
from dataplane_server.cluster.node.cache import Cache, CachedRun
from dataplane_server.cluster.node.fetching import Fetching
from dataplane_server.cluster.node.line import Membership, NodeLine
from dataplane_server.log import get_log
from dataplane_server.service.local.frame_endpoint import Connection
from dataplane_server.service.local.handles import Handles
from dataplane_server.service.local.local_endpoint import LocalEndpoint
from dataplane_server.service.local.local_methods import LocalMethod
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb


class NodeSession(Handles[Sequence[CachedRun]]):
    """A client of a node: the copies of other nodes' bytes that it uses. free: takes those that it uses no more."""

    def __init__(self, free: Callable[[Iterable[CachedRun]], None]) -> None:
        super().__init__()
        self._free = free

    def _end(self, held: Sequence[CachedRun]) -> None:
        self._free(held)


class Gateway(LocalEndpoint):
    """`listen_at`, `join` each coordinator, `link` now and then, and `close` once. membership: None while there is no
    coordinator.
    """

    def __init__(self, arena: Arena, cache: Cache, fetching: Fetching) -> None:
        fetch = LocalMethod("Fetch", pb.FetchRequest, self._fetch)
        super().__init__(None, arena, None, {pb.LOCAL_METHOD_FETCH: fetch}, abstract=False)
        self.membership: Membership | None = None
        self._cache = cache
        self._fetching = fetching
        self._line: NodeLine | None = None
        self._failed: Membership | None = None  # no line could be had
        self._is_full = False  # the line is
        self._held_back: set[Connection] = set()  # until it is not
        self._former: dict[bytes, Handles[Any]] = {}

    async def _serve(self, allowed: AllowedPeers, peer: socket.socket) -> None:
        if self._line is None:
            peer.close()
        else:
            await super()._serve(allowed, peer)

    async def _fetch(self, request: pb.FetchRequest, session: NodeSession) -> pb.FetchResponse:
        copies = await self._fetching.place(request.runs, 0 if self.membership is None else self.membership.node)
        session.hold(request.handle, copies)
        return pb.FetchResponse(runs=request.runs)

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def join(self, membership: Membership) -> None:
        """A coordinator has registered this node just now. Its node numbers and versions are its own."""
        self.leave()
        self._cache.forget_all()
        self.membership = membership

    def leave(self) -> None:
        """The coordinator is gone, or does not know this node any more."""
        self.membership = None
        self._end_line()

    async def link(self) -> None:
        """Have a line to the coordinator, if one can be had within 2 s; else warn once."""
        if self._line is None and (to := self.membership) is not None:
            try:
                line = await NodeLine.open(to, self)
                if self.membership is to:
                    self._line, self.traces = line, line.traces
                else:  # it has ended meanwhile
                    line.close()
            except (OSError, asyncio.TimeoutError) as error:
                if self._failed != to:
                    why = str(error) or "it does not answer"
                    get_log().warning("line_failed", coordinator=f"{to.host}:{to.port}", why=why)
                self._failed = to

    def line_lost(self, line: NodeLine) -> None:
        if line is self._line:
            self._end_line()

    def line_full(self, *, full: bool) -> None:
        self._is_full = full
        if not full:
            held_back, self._held_back = self._held_back, set()
            for connection in held_back:
                connection.resume_writing()

    def _end_line(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()
        for session in list(self._sessions.values()):
            self._forget(session)
            self._former[session.token] = session
        for connection in [one for one in self.connections if not one.is_lifeline]:
            connection.close()
        self.line_full(full=False)

    # -- sessions ------------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """How many are attached, without former ones."""
        return len(self._sessions)

    @property
    def former_clients(self) -> int:
        return len(self._former)

    def has(self, token: bytes) -> bool:
        """Whether the client of a session may still use the memory."""
        return token in self._sessions or token in self._former

    def _new_session(self, *, writable: bool, owner: str) -> NodeSession:
        return NodeSession(self._cache.release)

    def _greeting(self, session: Handles[Any]) -> pb.AttachResponse:
        response = super()._greeting(session)
        response.bare_messages = True
        if self.membership is not None:
            response.calls_host, response.calls_port = self.membership.host, self.membership.port
        return response

    def _open(self, session: Handles[Any]) -> Handles[Any]:
        if self._line is not None:
            self._line.send(pb.LOCAL_METHOD_ATTACH, pb.AttachRequest(session=session.token))
        return super()._open(session)

    def release(self, session: Handles[Any], handles: Sequence[int], connection: Connection) -> None:
        super().release(session, handles, connection)
        if self._line is not None and session.token in self._sessions:
            self._line.send(pb.LOCAL_METHOD_LET_GO, pb.LetGoRequest(handles=handles, session=session.token))
            if self._is_full:
                self._held_back.add(connection)
                connection.pause_writing()

    def end(self, session: Handles[Any]) -> None:
        if self._former.pop(session.token, None) is not None:
            session.end()
        elif self._line is not None and session.token in self._sessions:
            self._line.send(pb.LOCAL_METHOD_CLIENT_GONE, pb.ClientGoneRequest(session=session.token))
        super().end(session)

    # ------------------------------------------------------------------------------------------------------------------

    async def close(self, *, keep: bool = False) -> None:
        """Stop listening and close all connections. The coordinator does not hear that the clients are gone."""
        self.leave()
        await self.drain(0.0)
        await super().close(keep=keep)

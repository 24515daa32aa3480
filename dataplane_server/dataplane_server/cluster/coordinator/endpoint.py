"""The port where clients of all nodes call the coordinator, and where the lines of node actors end.

A node actor says on its line which clients have attached, and these join their sessions here. When a client is gone,
the node actor says so, and what the client holds ends. A line that ends says nothing of the clients: they still map the
arena, and may read and write there. So their calls end, but what they hold stays until the node has been asked for
these clients and knows that they are gone, or is lost.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Collection, Mapping
from typing import cast

from google.protobuf.message import Message

from dataplane_server.access.gate import OPEN_GATE, Gate
from dataplane_server.cluster.coordinator.calls import ClusterSession
from dataplane_server.cluster.coordinator.members import Members
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.local.frame_endpoint import Connection, FrameEndpoint, Greeting
from dataplane_server.service.local.local_connection import LocalConnection
from dataplane_server.service.local.local_methods import LocalMethod
from dataplane_server.service.shell import Shell
from dataplane_server.service.turns import Turn
from rl_dataplane.byte_streams import prepare_line
from rl_dataplane.v1 import local_pb2 as pb


class ClusterEndpoint(FrameEndpoint[ClusterSession]):
    """Serves all nodes: `start`, later `close` once."""

    def __init__(
        self,
        shell: Shell,
        metrics: Metrics,
        members: Members,
        methods: Mapping[int, LocalMethod],
        gate: Gate = OPEN_GATE,
        tracing: Tracing | None = None,
    ) -> None:
        greetings: dict[int, Greeting] = {
            pb.LOCAL_METHOD_JOIN: (pb.JoinRequest, self._join),
            pb.LOCAL_METHOD_RELAY: (pb.RelayRequest, self._relay),
        }
        super().__init__(shell, metrics, methods, greetings, tracing)
        self._shell = shell
        self._members = members
        self._gate = gate
        self._lines: dict[int, ClusterConnection] = {}  # by node
        self._orphans: dict[bytes, ClusterSession] = {}  # of lines that have ended

    def start(self, host: str) -> int:
        """Listen on a port that the system chooses. Returns it. OSError."""
        return self._accept_tcp("cluster", host, 0, self._serve)

    async def _serve(self, peer: socket.socket) -> None:
        prepare_line(peer)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: ClusterConnection(self, peer), peer)

    async def close(self, *, keep: bool = False) -> None:
        await self.drain(0.0)
        await super().close(keep=keep)
        if not keep:
            self.release_orphans(list(self._orphans))

    def _join(self, request: pb.JoinRequest, connection: Connection) -> pb.JoinResponse:
        """A client's connection has its session, whose request ids are those of the caller that it proves to be, as
        over gRPC. Refusal.
        """
        owner = self._gate.proven(request.caller_proof) if request.caller_proof else ""
        response = super()._join(request, connection)
        cast("ClusterSession", connection.session).owner = owner
        return response

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _relay(self, request: pb.RelayRequest, line: ClusterConnection) -> pb.RelayResponse:
        """A node's actor has a line, in place of its last one. Refusal UNAUTHENTICATED."""
        try:
            secret = self._members.get(request.node).secret
        except Refusal:
            secret = b""
        if not secret or not hmac.compare_digest(request.secret, secret):
            raise Refusal(Reason.UNAUTHENTICATED, f"this is not the secret of node {request.node}")
        self.end_line(request.node, self._lines.get(request.node))
        self._lines[request.node] = line
        line.node = request.node
        return pb.RelayResponse(traces=self.traces)

    def end_line(self, node: int, line: ClusterConnection | None) -> None:
        """The line of a node is over, if it is still this one: keep what its clients hold."""
        if line is None or self._lines.get(node) is not line:
            return
        del self._lines[node]
        line.close()
        for session in self._of(node):
            self._forget(session)
            self._orphans[session.token] = session

    def has_line(self, node: int) -> bool:
        """Whether clients of a node can attach there."""
        return node in self._lines

    def hear(self, node: int, said: Message) -> None:
        """What a node's actor says on its line."""
        token = said.session  # type: ignore[attr-defined]  # all three have it
        if isinstance(said, pb.AttachRequest):
            self._open(ClusterSession(self._shell, node, token))
        elif (session := self._sessions.get(token)) is None or session.node != node:
            return
        elif isinstance(said, pb.LetGoRequest):
            session.release(said.handles)
        else:
            self.end(session)

    def _of(self, node: int) -> list[ClusterSession]:
        return [session for session in self._sessions.values() if session.node == node]

    # -- orphans -------------------------------------------------------------------------------------------------------

    def orphans(self, node: int) -> tuple[bytes, ...]:
        """Tokens of the sessions without a line whose clients may still use the arena of this node."""
        return tuple(session.token for session in self._orphans.values() if session.node == node)

    def release_orphans(self, tokens: Collection[bytes]) -> None:
        """The clients of these sessions use the arena no more."""
        for token in tokens:
            if (session := self._orphans.pop(token, None)) is not None:
                session.end()

    def lose(self, node: int) -> None:
        """End all sessions of a node that is lost."""
        for session in self._of(node):
            self.end(session)
        self.release_orphans(self.orphans(node))
        self.end_line(node, self._lines.get(node))


_SAID: Mapping[int, type[Message]] = {
    pb.LOCAL_METHOD_ATTACH: pb.AttachRequest,
    pb.LOCAL_METHOD_LET_GO: pb.LetGoRequest,
    pb.LOCAL_METHOD_CLIENT_GONE: pb.ClientGoneRequest,
}


class ClusterConnection(LocalConnection):
    """A connection by which a client joins its session, or a line. node: whose line it is; 0 if it is none."""

    def __init__(self, endpoint: ClusterEndpoint, peer: socket.socket) -> None:
        super().__init__(endpoint, peer)
        self.node = 0
        self._cluster = endpoint

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self.node:
            self._cluster.end_line(self.node, self)

    @property
    def _is_open(self) -> bool:
        return super()._is_open or self.node > 0

    def _serve_next(self, turn: Turn | None = None) -> None:
        """A line is read to its end: a client may join as soon as its node says that it has attached."""
        if not self.node:
            return super()._serve_next(turn)
        while self._transport is not None and (head := self._next_head()) is not None:
            self._take(head[1], self._take_body(head[0]), Turn.NOW)
        if self._transport is not None:
            self._transport.resume_reading()
        self._note_held()
        return self._note_stall(stalled=self._stalls())

    def _take(self, method: int, body: bytes, turn: Turn) -> None:
        if not self.node:
            return super()._take(method, body, turn)
        try:
            said = self._cluster.messages.parse(_SAID[method], body, "frame body")
        except (Refusal, KeyError):
            return self.close()
        return self._cluster.hear(self.node, said)

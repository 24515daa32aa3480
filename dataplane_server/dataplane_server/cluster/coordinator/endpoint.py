"""The port where node actors relay the frames of their clients, and the sessions of these clients. Clients make most
calls here themselves, by connections that join their sessions.

A connection that says that its client is gone ends what the client holds. One that ends without a word tells that the
node actor has gone: its clients still map the arena, and may read and write there. So what they hold stays until the
node has been asked for these clients and knows that they are gone, or is lost.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Collection, Mapping

from dataplane_server.accepting import accepting
from dataplane_server.cluster.coordinator.calls import RelaySession
from dataplane_server.cluster.coordinator.members import Members
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.local.frame_endpoint import FrameEndpoint
from dataplane_server.service.local.local_connection import LocalConnection
from dataplane_server.service.local.local_methods import LocalMethod
from dataplane_server.service.local.local_session import LocalSession
from dataplane_server.service.shell import Shell
from dataplane_server.service.turns import Turn
from rl_dataplane.v1 import local_pb2 as pb


class RelayEndpoint(FrameEndpoint[RelaySession]):
    """Serves the relays of all nodes: `start`, later `close` once."""

    def __init__(
        self,
        shell: Shell,
        metrics: Metrics,
        members: Members,
        methods: Mapping[int, LocalMethod],
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(shell, metrics, methods, tracing)
        self._members = members
        self._orphans: list[RelaySession] = []  # of node actors that have gone

    def start(self, host: str) -> int:
        """Listen on a port that the system chooses. Returns it. OSError."""
        listener = socket.create_server((host, 0), backlog=1024)
        listener.setblocking(False)
        self._accepting.append(accepting(listener, "relay", self._serve))
        return int(listener.getsockname()[1])

    async def _serve(self, peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: RelayConnection(self, peer), peer)

    async def close(self) -> None:
        await self.drain(0.0)
        await super().close()
        for session in self._orphans:
            session.end()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def admit(self, request: pb.RelayRequest) -> RelaySession | None:
        """A connection of a node's actor: a session if a client attaches by it. Refusal UNAUTHENTICATED."""
        try:
            secret = self._members.get(request.node).secret
        except Refusal:
            secret = b""
        if not secret or not hmac.compare_digest(request.secret, secret):
            raise Refusal(Reason.UNAUTHENTICATED, f"this is not the secret of node {request.node}")
        if not request.attaches:
            return None
        return self._open(RelaySession(self._shell, request.node))

    def orphan(self, session: LocalSession) -> None:
        """Keep what a client holds whose node actor is gone."""
        found = self._forget(session)
        if found is not None:
            self._orphans.append(found)

    def orphans(self, node: int) -> tuple[bytes, ...]:
        """Tokens of the sessions whose clients may still use the arena of this node."""
        return tuple(session.token for session in self._orphans if session.node == node)

    def release(self, tokens: Collection[bytes]) -> None:
        """The clients of these orphans use the arena no more."""
        gone = [session for session in self._orphans if session.token in tokens]
        self._orphans = [session for session in self._orphans if session.token not in tokens]
        for session in gone:
            session.end()

    def lose(self, node: int) -> None:
        """End all sessions of a node that is lost."""
        for session in [one for one in self._sessions.values() if one.node == node]:
            self.end(session)
        self.release(self.orphans(node))


class RelayConnection(LocalConnection):
    """A connection of a node actor for one of a client, or one by which a client joins its session."""

    def __init__(self, endpoint: RelayEndpoint, peer: socket.socket) -> None:
        super().__init__(endpoint, peer)
        self._relays = endpoint
        self._is_relay = False
        self._is_gone = False  # the client, for certain

    def _open(self, method: int, body: bytes) -> None:
        if self._is_relay or method == pb.LOCAL_METHOD_JOIN:
            return super()._open(method, body)
        if method != pb.LOCAL_METHOD_RELAY:
            return self.close()
        try:
            request = self._relays.messages.parse(pb.RelayRequest, body, "frame body")
            self.session = self._relays.admit(request)
        except Refusal as refusal:
            return self._send_refusal(refusal)
        self._is_relay, self._attached = True, self.session is not None
        token = b"" if self.session is None else self.session.token
        response = pb.RelayResponse(session=token, traces=self._relays.traces)
        self._send(pb.LOCAL_OUTCOME_UNSPECIFIED, response.SerializeToString())
        return None

    def _take(self, method: int, body: bytes, turn: Turn) -> None:
        if method == pb.LOCAL_METHOD_CLIENT_GONE and self._is_relay:
            self._is_gone = True
            self.close()
        else:
            super()._take(method, body, turn)

    def _end_session(self, session: LocalSession) -> None:
        if self._is_gone:
            self._relays.end(session)
        else:
            self._relays.orphan(session)

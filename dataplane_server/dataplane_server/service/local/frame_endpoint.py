"""What all endpoints of local.proto have: connections that their listeners accept, and the sessions of clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from dataplane_server.accepting import Serve, accepting, tcp_listener
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.observe.metrics import Metrics, Transport
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.call_scope import CallScope
from dataplane_server.service.error_table import status_of
from dataplane_server.service.local.handles import Handles
from dataplane_server.service.local.local_buffers import LocalBuffers
from dataplane_server.service.local.local_methods import LocalMethod
from dataplane_server.service.messages.parsing import Messages
from dataplane_server.service.shell import Shell
from dataplane_server.service.turns import Turns
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import frame_of

S = TypeVar("S", bound=Handles[Any])
Greeting = tuple[type[Message], Callable[[Any, Any], "Message | None"]]
"""A request that may be the first on a connection: its class, and what makes the connection a client's or a node's.
That takes the request and the connection, and returns the response, or None if it has sent it. Refusal.
"""

BACKLOG = 1024
_DRAIN_TICK_S = 0.01


class Connection(Protocol):
    """A connection that was accepted. session: None before the first request. is_lifeline: whether the session ends
    with it. call: the call that waits.
    """

    session: Handles[Any] | None
    is_lifeline: bool
    call: asyncio.Task[None] | None

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def close(self) -> None: ...


class FrameEndpoint(Generic[S]):
    """Its connections use what is public. greetings: by LocalMethod; a connection begins with one. begin_call: takes a
    verb and a trace context. unstable: what an answer has to wait for before it leaves. traces: whether requests may
    carry a trace context. shell, metrics: None where there is no core, as on a node of a cluster.
    """

    def __init__(
        self,
        shell: Shell | None,
        metrics: Metrics | None,
        methods: Mapping[int, LocalMethod],
        greetings: Mapping[int, Greeting],
        tracing: Tracing | None,
        transport: Transport = "shm",
    ) -> None:
        self.methods = methods
        self.greetings = greetings
        self.begin_call: Callable[[str, str], CallScope] = partial(CallScope, metrics, tracing, transport)
        self.connections: set[Connection] = set()
        self.buffers = LocalBuffers()
        self.messages = Messages(Limits() if shell is None else shell.plane.limits)
        self.draining = False
        self.unstable: Callable[[], Awaitable[None] | None] = (lambda: None) if shell is None else shell.unstable
        self.turns = Turns() if shell is None else shell.turns
        self.traces = tracing is not None
        self._metrics = metrics
        self._sessions: dict[bytes, S] = {}
        self._accepting: list[asyncio.Task[None]] = []

    # -- listening -----------------------------------------------------------------------------------------------------

    def _accept_tcp(self, name: str, host: str, port: int, serve: Serve) -> int:
        """Listen, and have connections served. Returns the port, which the system chooses for 0. OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = tcp_listener(family, (host, port), BACKLOG)
        self._accept(name, listener, serve)
        return int(listener.getsockname()[1])

    def _accept(self, name: str, listener: socket.socket, serve: Serve) -> None:
        listener.setblocking(False)
        self._accepting.append(accepting(listener, name, serve))

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _join(self, request: pb.JoinRequest, connection: Connection) -> pb.JoinResponse:
        connection.session = self._sessions.get(request.session)
        if connection.session is None:
            raise Refusal(Reason.INVALID_REQUEST, "unknown session: its client must attach first")
        return pb.JoinResponse()

    def _open(self, session: S) -> S:
        self._sessions[session.token] = session
        self._count(1)
        return session

    def _count(self, clients: int) -> None:
        if self._metrics is not None:
            self._metrics.attached_clients += clients

    def release(self, session: Handles[Any], handles: Sequence[int], connection: Connection) -> None:
        """A client lets go what it holds under handles. connection: by which it said so."""
        session.release(handles)

    def end(self, session: Handles[Any]) -> None:
        """End a session whose client is gone, and the client's calls."""
        if self._forget(session) is not None:
            session.end()

    def _forget(self, session: Handles[Any]) -> S | None:
        """Know a session no more, and end its calls."""
        found = self._sessions.pop(session.token, None)
        if found is not None:
            self._count(-1)
            for connection in [one for one in self.connections if one.session is session and not one.is_lifeline]:
                connection.close()
        return found

    # -- shutdown ------------------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> None:
        """Refuse new calls. Wait up to grace_s for calls under way and for clients that fill reservations."""
        self.draining = True
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self._busy and loop.time() < deadline:  # noqa: ASYNC110  # once, at shutdown; many places would set an event
            await asyncio.sleep(_DRAIN_TICK_S)

    async def close(self, *, keep: bool = False) -> None:
        """End every session. keep: not what clients hold; they still map the memory, and the next life of the server
        finds out when they no longer do. Else no client may write to the memory from now on.
        """
        calls = [connection.call for connection in self.connections if connection.call is not None]
        for connection in list(self.connections):
            connection.close()
        for session in list(self._sessions.values()):
            if keep:
                self._forget(session)
            else:
                self.end(session)
        await asyncio.gather(*calls, return_exceptions=True)

    @property
    def _busy(self) -> bool:
        calls = self.turns.n_waiting or any(connection.call is not None for connection in self.connections)
        return bool(calls) or any(session.writes for session in self._sessions.values())


def refuse(peer: socket.socket, refusal: Refusal) -> None:
    """Send a peer why, without waiting for it, and close its connection."""
    body = status_of(refusal).SerializeToString()
    with peer, contextlib.suppress(OSError):
        peer.send(frame_of(pb.LOCAL_OUTCOME_ERROR, body))

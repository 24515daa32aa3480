"""What all endpoints of local.proto have: connections that their listeners accept, and the sessions of clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.observe.metrics import Metrics, Transport
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.call_scope import CallScope
from dataplane_server.service.local.local_buffers import LocalBuffers
from dataplane_server.service.local.local_methods import LocalMethod
from dataplane_server.service.local.local_session import LocalSession
from dataplane_server.service.messages.parsing import Messages
from dataplane_server.service.shell import Shell

S = TypeVar("S", bound=LocalSession)

_DRAIN_TICK_S = 0.01


class Connection(Protocol):
    """A connection that was accepted. session: None before the first request. call: the call that waits."""

    session: LocalSession | None
    call: asyncio.Task[None] | None

    def close(self) -> None: ...


class FrameEndpoint(Generic[S]):
    """Its connections use what is public. begin_call: takes a verb and a trace context. unstable: what an answer has to
    wait for before it leaves. traces: whether requests may carry a trace context.
    """

    def __init__(
        self,
        shell: Shell,
        metrics: Metrics,
        methods: Mapping[int, LocalMethod],
        tracing: Tracing | None,
        transport: Transport = "shm",
    ) -> None:
        self.methods = methods
        self.begin_call: Callable[[str, str], CallScope] = partial(CallScope, metrics, tracing, transport)
        self.connections: set[Connection] = set()
        self.buffers = LocalBuffers()
        self.messages = Messages(shell.plane.limits)
        self.draining = False
        self.unstable = shell.unstable
        self.turns = shell.turns
        self.traces = tracing is not None
        self._shell = shell
        self._metrics = metrics
        self._sessions: dict[bytes, S] = {}
        self._accepting: list[asyncio.Task[None]] = []

    # -- sessions ------------------------------------------------------------------------------------------------------

    def attach(self, peer: socket.socket) -> LocalSession:
        """Open a session for a client that asks for memory."""
        raise Refusal(Reason.INVALID_REQUEST, "no client attaches here")

    def session(self, token: bytes) -> LocalSession:
        session = self._sessions.get(token)
        if session is None:
            raise Refusal(Reason.INVALID_REQUEST, "unknown session: its client must attach first")
        return session

    def _open(self, session: S) -> S:
        self._sessions[session.token] = session
        self._metrics.attached_clients += 1
        return session

    def end(self, session: LocalSession) -> None:
        """End a session whose client is gone, and the client's calls."""
        if self._forget(session) is not None:
            session.end()

    def _forget(self, session: LocalSession) -> S | None:
        found = self._sessions.pop(session.token, None)
        if found is not None:
            self._metrics.attached_clients -= 1
            for connection in [one for one in self.connections if one.session is session]:
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

    async def close(self) -> None:
        """End every session and all that clients hold. No client may write to the arena from now on."""
        calls = [connection.call for connection in self.connections if connection.call is not None]
        for connection in list(self.connections):
            connection.close()
        for session in list(self._sessions.values()):
            self.end(session)
        await asyncio.gather(*calls, return_exceptions=True)

    @property
    def _busy(self) -> bool:
        calls = self.turns.n_waiting or any(connection.call is not None for connection in self.connections)
        return bool(calls) or any(session.writes for session in self._sessions.values())

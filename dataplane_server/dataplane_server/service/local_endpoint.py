"""The Unix sockets of local.proto, the connections that they accept, and the sessions of their clients."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from dataplane_server.accepting import accept_forever
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.observe.log import get_log
from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.binding import files_of_mode
from dataplane_server.service.call_scope import CallScope
from dataplane_server.service.local_buffers import LocalBuffers
from dataplane_server.service.local_connection import LocalConnection
from dataplane_server.service.local_methods import LocalMethod
from dataplane_server.service.local_session import LocalSession
from dataplane_server.service.messages import Messages
from dataplane_server.service.shell import Shell
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import FILE_SUFFIX, HEAD

_DRAIN_TICK_S = 0.01
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class LocalEndpoint:
    """Serves clients of this host: `listen_*`, later `drain` and `close` once."""

    def __init__(
        self,
        shell: Shell,
        arena: Arena,
        metrics: Metrics,
        methods: Mapping[int, LocalMethod],
        tracing: Tracing | None = None,
    ) -> None:
        self.methods = methods
        self.begin_call: Callable[[str, str], CallScope] = partial(CallScope, metrics, tracing, "shm")
        self.connections: set[LocalConnection] = set()
        self.buffers = LocalBuffers()
        self.messages = Messages(shell.plane.limits)
        self.draining = False
        self.unstable = shell.unstable
        self.abstract_name = f"rl-dataplane-{arena.nonce.hex()}"
        self._shell = shell
        self._arena = arena
        self._metrics = metrics
        self._traces = tracing is not None
        self._sessions: dict[bytes, LocalSession] = {}
        self._files: list[Path] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._log = get_log()

    # -- listening -----------------------------------------------------------------------------------------------------

    def listen_abstract(self) -> None:
        """Listen on the abstract socket, for processes of this user."""
        self._listen(f"\0{self.abstract_name}", own_user_only=True)

    def listen_beside(self, path: str, mode: int | None) -> None:
        """Listen beside a socket file of this server, with this mode (None: the umask decides). If that fails, because
        the path is too long or another file has it, clients have only the abstract socket.
        """
        file = Path(path + FILE_SUFFIX)
        try:
            if file.is_socket():  # of a killed server: a running one would still have the gRPC socket
                file.unlink()
            with files_of_mode(mode):
                self._listen(str(file), own_user_only=False)
        except OSError as error:
            self._log.warning("local_listen_failed", path=str(file), error=str(error))
        else:
            self._files.append(file)

    def _listen(self, address: str, *, own_user_only: bool) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(address)
            listener.listen(1024)
        except BaseException:
            listener.close()
            raise
        serve = self._serve_own_user if own_user_only else self._serve
        self._accepting.append(asyncio.create_task(accept_forever(listener, "local", serve)))

    async def _serve(self, peer: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: LocalConnection(self, peer), peer)

    async def _serve_own_user(self, peer: socket.socket) -> None:
        if _of_own_user(peer):
            await self._serve(peer)
        else:
            peer.close()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def attach(self, peer: socket.socket) -> LocalSession:
        """Send the arena to a client, and open a session for it."""
        session = LocalSession(self._shell)
        response = pb.AttachResponse(
            session=session.token,
            arena_bytes=self._arena.file_bytes,
            nonce_offset=self._arena.nonce_offset,
            traces=self._traces,
        )
        body = response.SerializeToString()
        with self._arena.descriptors() as descriptors:
            socket.send_fds(peer, [HEAD.pack(len(body), pb.LOCAL_OUTCOME_UNSPECIFIED) + body], descriptors)
        self._sessions[session.token] = session
        self._metrics.attached_clients += 1
        return session

    def session(self, token: bytes) -> LocalSession:
        session = self._sessions.get(token)
        if session is None:
            raise Refusal(Reason.INVALID_REQUEST, "unknown session: its client must attach first")
        return session

    def end(self, session: LocalSession) -> None:
        """End a session whose client is gone, and the client's calls."""
        if self._sessions.pop(session.token, None) is not None:
            session.end()
            self._metrics.attached_clients -= 1
            for connection in [c for c in self.connections if c.session is session]:
                connection.close()

    # -- shutdown ------------------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> None:
        """Refuse new calls. Wait up to grace_s for calls under way and for clients that fill reservations."""
        self.draining = True
        for file in self._files:  # at once: when gRPC has removed its own, another server may listen here
            file.unlink(missing_ok=True)
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
        calls = any(connection.call is not None for connection in self.connections)
        return calls or any(session.writes for session in self._sessions.values())


def _of_own_user(peer: socket.socket) -> bool:
    packed = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(packed)[1] in (os.geteuid(), 0)

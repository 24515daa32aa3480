"""The Unix sockets of local.proto, the connections they accepted, and the sessions of those."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.observe.log import get_log
from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.binding import files_of_mode
from dataplane_server.service.failures import Failures
from dataplane_server.service.local_connection import LocalConnection, LocalMethod
from dataplane_server.service.local_session import LocalSession
from dataplane_server.service.shell import Shell
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1.local_frames import FILE_SUFFIX

_ACCEPT_PAUSE_S = 0.1
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
        self.arena = arena
        self.metrics = metrics
        self.tracing = tracing
        self.methods = methods
        self.failures = Failures(metrics)
        self.connections: set[LocalConnection] = set()
        self.abstract_name = f"rl-dataplane-{arena.nonce.hex()}"
        self._shell = shell
        self._sessions: dict[bytes, LocalSession] = {}
        self._files: list[Path] = []
        self._accepting: list[asyncio.Task[None]] = []
        self.draining = False
        self._log = get_log()

    # -- listening -----------------------------------------------------------------------------------------------------

    def listen_abstract(self) -> None:
        """Listen at the abstract socket, for processes of this user."""
        self._listen(f"\0{self.abstract_name}", own_user_only=True)

    def listen_beside(self, path: str, mode: int | None) -> None:
        """Listen beside a socket file that is ours, for whom the file's rights admit: `mode`, or what the umask leaves.
        Where that cannot be, because the path is too long or taken by another file, the abstract socket has to do.
        """
        file = Path(path + FILE_SUFFIX)
        try:
            if file.is_socket():  # left by a server that was killed; had it lived, we would not have its socket
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
        self._accepting.append(asyncio.create_task(self._accept(listener, own_user_only)))

    async def _accept(self, listener: socket.socket, own_user_only: bool) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    peer, _ = await loop.sock_accept(listener)
                except OSError as error:  # out of descriptors, until somebody closes one
                    self._log.warning("local_accept_failed", error=str(error))
                    await asyncio.sleep(_ACCEPT_PAUSE_S)
                    continue
                if own_user_only and not _of_own_user(peer):
                    peer.close()
                    continue
                connection = LocalConnection(self, peer)
                await loop.connect_accepted_socket(lambda made=connection: made, peer)  # type: ignore[misc]

    # -- sessions ------------------------------------------------------------------------------------------------------

    def open_session(self) -> LocalSession:
        session = LocalSession(self._shell)
        self._sessions[session.token] = session
        self.metrics.attached_clients += 1
        return session

    def session(self, token: bytes) -> LocalSession:
        session = self._sessions.get(token)
        if session is None:
            raise Refusal(Reason.INVALID_REQUEST, "there is no such session; attach first")
        return session

    def end(self, session: LocalSession) -> None:
        """End a session whose client is gone, and the calls of that client."""
        if self._sessions.pop(session.token, None) is not None:
            session.end()
            self.metrics.attached_clients -= 1
            for connection in [c for c in self.connections if c.session is session]:
                connection.close()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> None:
        """Take no calls any more, and let those under way and lent writes finish for grace_s."""
        self.draining = True
        for file in self._files:  # at once: as soon as gRPC has removed its own, a successor may listen here
            file.unlink(missing_ok=True)
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        while self._busy and loop.time() < deadline:  # noqa: ASYNC110  # once in a life; an event would be set by many
            await asyncio.sleep(_DRAIN_TICK_S)

    async def close(self) -> None:
        """End every session. What clients held is free from here on: nobody may write to the arena any more."""
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

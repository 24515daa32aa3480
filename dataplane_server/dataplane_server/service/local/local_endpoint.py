"""The Unix sockets of local.proto, the connections that they accept, and the sessions of their clients."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from dataplane_server.access.gate import OPEN_GATE, Gate
from dataplane_server.access.peers import OWN_USER, AllowedPeers, Peer, peer_of
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.log import get_log
from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.binding import files_of_mode, problem_of_path
from dataplane_server.service.local.frame_endpoint import BACKLOG, FrameEndpoint, Greeting, refuse
from dataplane_server.service.local.handles import Handles
from dataplane_server.service.local.local_connection import LocalConnection
from dataplane_server.service.local.local_methods import LocalMethod
from dataplane_server.service.local.local_session import LocalSession
from dataplane_server.service.shell import Shell
from dataplane_server.service.socket_files import SocketFile
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import FILE_SUFFIX, frame_of

_LOG_REFUSED_EVERY_S = 60.0


class LocalEndpoint(FrameEndpoint[Handles[Any]]):
    """Serves clients of this host: `listen_*`, later `drain` and `close` once.

    abstract: whether clients find the memory behind a TCP address, by an abstract socket; every process of the network
    namespace sees its name, and only those of this user and root are admitted. peers: whom the socket files admit, of
    those who may write to the files. gate: says whether clients that attach may map the memory for writing, and whose
    token they have.
    """

    def __init__(
        self,
        shell: Shell | None,
        arena: Arena,
        metrics: Metrics | None,
        methods: Mapping[int, LocalMethod],
        tracing: Tracing | None = None,
        *,
        abstract: bool = True,
        peers: AllowedPeers | None = None,
        gate: Gate = OPEN_GATE,
    ) -> None:
        greetings: dict[int, Greeting] = {
            pb.LOCAL_METHOD_ATTACH: (pb.AttachRequest, self._attach),
            pb.LOCAL_METHOD_JOIN: (pb.JoinRequest, self._join),
        }
        super().__init__(shell, metrics, methods, greetings, tracing)
        self._shell = shell
        self.abstract_name = f"rl-dataplane-{secrets.token_hex(16)}" if abstract else ""
        self.refused_peers = 0
        self._arena = arena
        self._files: list[SocketFile] = []
        self._peers = peers or AllowedPeers()
        self.may_write = gate.unix_sockets_write
        self._gate = gate
        self._logged_peers = 0  # of those refused
        self._log_peers_at = 0.0
        self._log = get_log()

    # -- listening -----------------------------------------------------------------------------------------------------

    def listen_abstract(self) -> None:
        """Listen on the abstract socket, if there is to be one."""
        if self.abstract_name:
            self._listen(f"\0{self.abstract_name}", OWN_USER)

    def listen_beside(self, path: str, mode: int | None) -> None:
        """Listen beside a socket file of this server, with this mode (None: the umask decides). If that fails, because
        the path is too long or taken, clients have only the abstract socket, if there is one.
        """
        file = Path(path + FILE_SUFFIX)
        try:
            if (problem := problem_of_path(str(file))) is not None:
                raise OSError(problem)
            self.listen_at(file, mode)
        except OSError as error:
            self._log.warning("local_listen_failed", path=str(file), error=str(error))

    def listen_at(self, file: Path, mode: int | None) -> None:
        """Listen at a path where only this server may. OSError."""
        if file.is_socket():  # of a killed server
            file.unlink()
        with files_of_mode(mode):
            self._listen(str(file), self._peers)
        self._files.append(SocketFile(file))

    def _listen(self, address: str, allowed: AllowedPeers) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._accept("local", listener, partial(self._serve, allowed))

    async def _serve(self, allowed: AllowedPeers, peer: socket.socket) -> None:
        found = peer_of(peer)
        if allowed.allows(found):
            await asyncio.get_running_loop().connect_accepted_socket(lambda: LocalConnection(self, peer), peer)
        else:
            self._refuse(peer, found, allowed)

    def _refuse(self, peer: socket.socket, found: Peer, allowed: AllowedPeers) -> None:
        whom = "processes of the server's user and root" if allowed is OWN_USER else "certain users and groups"
        refuse(peer, Refusal(Reason.UNAUTHENTICATED, f"this socket serves only {whom}, not user {found.uid}"))
        self.refused_peers += 1
        now = time.monotonic()
        if now >= self._log_peers_at:
            number, self._logged_peers = self.refused_peers - self._logged_peers, self.refused_peers
            self._log_peers_at = now + _LOG_REFUSED_EVERY_S
            self._log.warning("local_peer_refused", pid=found.pid, uid=found.uid, gid=found.gid, refused=number)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _attach(self, request: pb.AttachRequest, connection: LocalConnection) -> None:
        """Send the arena to a client, for writing if it may, and open a session for it. Refusal UNAUTHENTICATED."""
        writable = self.may_write()
        owner = self._gate.at_unix_socket(request.token).name if request.token else ""
        session = self._open(self._new_session(writable=writable, owner=owner))
        connection.session, connection.is_lifeline = session, True
        response = self._greeting(session)
        body = response.SerializeToString()
        reading, writing = self._arena.descriptors()
        descriptors = [reading, writing] if writable else [reading]
        with contextlib.suppress(OSError):  # its connection will show that the client is gone
            socket.send_fds(connection.peer, [frame_of(pb.LOCAL_OUTCOME_UNSPECIFIED, body)], descriptors)

    def _new_session(self, *, writable: bool, owner: str) -> Handles[Any]:
        return LocalSession(cast("Shell", self._shell), writable=writable, owner=owner)

    def _greeting(self, session: Handles[Any]) -> pb.AttachResponse:
        return pb.AttachResponse(
            session=session.token,
            arena_bytes=self._arena.file_bytes,
            traces=self.traces,
            proof=self._arena.proof,
        )

    # -- shutdown ------------------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> None:
        for file in self._files:  # at once: when gRPC has removed its own, another server may listen here
            file.remove()
        await super().drain(grace_s)

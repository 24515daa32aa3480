"""The Unix socket of a node, by which its clients reach the coordinator and the node's memory.

The gateway accepts clients at all times. While there is no coordinator, it closes their connections before any answer;
so clients know that a server is about to be there, and try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from pathlib import Path

from dataplane_server.accepting import accepting
from dataplane_server.access.peers import AllowedPeers, peer_of
from dataplane_server.cluster.node.cache import Cache
from dataplane_server.cluster.node.fetching import Fetching
from dataplane_server.cluster.node.relay import Relay, frame_of
from dataplane_server.cluster.node.relayed import RelayedConnection
from dataplane_server.cluster.node.session import NodeSession
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.binding import files_of_mode
from dataplane_server.service.error_table import status_of
from dataplane_server.service.local.local_buffers import LocalBuffers
from dataplane_server.service.messages.parsing import Messages
from dataplane_server.service.socket_files import SocketFile
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb


class Gateway:
    """`listen`, then `use` each coordinator, then `close`. peers: whom the socket admits, if its file lets them."""

    def __init__(self, arena: Arena, cache: Cache, fetching: Fetching, peers: AllowedPeers | None = None) -> None:
        self.relay: Relay | None = None
        self.connections: set[RelayedConnection] = set()
        self.buffers = LocalBuffers()
        self.messages = Messages(Limits())
        self._arena = arena
        self._cache = cache
        self._fetching = fetching
        self._peers = peers or AllowedPeers()
        self._sessions: dict[bytes, NodeSession] = {}
        self._file: SocketFile | None = None
        self._accepting: asyncio.Task[None] | None = None

    def listen(self, path: Path, mode: int | None = None) -> None:
        """Listen at a path where only this gateway may, with a file of this mode (None: the umask decides). Raises
        OSError.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            if path.is_socket():  # of a node actor that was killed
                path.unlink()
            with files_of_mode(mode):
                listener.bind(str(path))
            listener.listen(1024)
        except BaseException:
            listener.close()
            raise
        self._file = SocketFile.at(path)
        self._accepting = accepting(listener, "node", self._serve)

    async def _serve(self, peer: socket.socket) -> None:
        found = peer_of(peer)
        if self._peers.allows(found):
            await asyncio.get_running_loop().connect_accepted_socket(partial(RelayedConnection, self, peer), peer)
            return
        message = f"this socket serves only certain users and groups, not user {found.uid}"
        status = status_of(Refusal(Reason.UNAUTHENTICATED, message))
        with peer, contextlib.suppress(OSError):
            peer.send(frame_of(pb.LOCAL_OUTCOME_ERROR, status.SerializeToString()))

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def use(self, relay: Relay) -> None:
        """Relay to a coordinator that has registered this node just now. Its node numbers and versions are its own."""
        self.lose_relay()
        self._cache.forget_all()
        self.relay = relay

    def lose_relay(self) -> None:
        """The coordinator is gone, or does not know this node any more: clients that are attached are former ones."""
        self.relay = None
        for connection in list(self.connections):
            connection.lose_upstream()

    @property
    def clients(self) -> int:
        """How many are attached."""
        return len(self._sessions)

    def has(self, token: bytes) -> bool:
        """Whether the client of a session is attached."""
        return token in self._sessions

    @property
    def former_clients(self) -> int:
        return sum(connection.is_former for connection in self.connections)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def attach(self, peer: socket.socket, relayed: pb.RelayResponse) -> NodeSession:
        """Send the arena to a client for which the coordinator has opened a session."""
        response = pb.AttachResponse(
            session=relayed.session,
            arena_bytes=self._arena.file_bytes,
            traces=relayed.traces,
            proof=self._arena.proof,
            bare_messages=True,
        )
        if self.relay is not None:
            response.calls_host, response.calls_port = self.relay.host, self.relay.port
        frame = frame_of(pb.LOCAL_OUTCOME_UNSPECIFIED, response.SerializeToString())
        session = NodeSession(relayed.session, self._cache.release)
        self._sessions[session.token] = session
        with contextlib.suppress(OSError):  # its connection tells that the client is gone
            socket.send_fds(peer, [frame], self._arena.descriptors())
        return session

    def session(self, token: bytes) -> NodeSession:
        session = self._sessions.get(token)
        if session is None:
            raise Refusal(Reason.INVALID_REQUEST, "unknown session: its client must attach first")
        return session

    def disconnect(self, session: NodeSession) -> None:
        """End the calls of a session that the coordinator or the client has left."""
        if self._sessions.pop(session.token, None) is not None:
            for connection in [c for c in self.connections if c.session is session and not c.is_lifeline]:
                connection.close()

    async def place(self, lease: pb.ArenaRuns, handle: int, session: NodeSession) -> None:
        """Bring the bytes of a lease to this node, and keep them for the handle. Refusal if that fails."""
        relay = self.relay
        copies = await self._fetching.place(lease, 0 if relay is None else relay.node)
        session.hold(handle, copies)

    async def close(self) -> None:
        """Stop listening and close all connections. The coordinator is not told that the clients are gone."""
        if self._file is not None:
            self._file.remove()
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        self.lose_relay()
        for connection in list(self.connections):
            connection.close()

"""One connection of a client of a node: it relays whole frames between the client and the coordinator.

It serves ATTACH itself, with the descriptors of the node's arena, and rewrites the answers of reads that name bytes of
other nodes. All else passes as it is. A connection carries one call at a time, so a response belongs to the last
request. Either side is read only as fast as the other one reads.

If the coordinator is lost, connections that carry calls close, and their client tries again. A connection that attached
stays until the client closes it: until then the client may use the memory that it mapped, and it is a *former* client.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

from dataplane_server.cluster.node.frame_buffer import FrameBuffer
from dataplane_server.cluster.node.relay import Relay, Upstream, frame_of
from dataplane_server.cluster.node.session import NodeSession
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.error_table import status_of
from dataplane_server.service.local.local_buffers import LocalBuffers
from dataplane_server.service.local.local_connection import MAX_FIRST_BODY_BYTES
from dataplane_server.service.messages.frames import STALL_TIMEOUT_S
from dataplane_server.service.messages.parsing import Messages
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import HEAD, MAX_BODY_BYTES, TRACED, TRACEPARENT_BYTES

_WHAT = "frame body"
_NOT_OF_CLIENTS = (pb.LOCAL_METHOD_RELAY, pb.LOCAL_METHOD_CLIENT_GONE)


class Node(Protocol):
    """What a connection uses of the gateway that accepted it. relay: None while there is no coordinator."""

    relay: Relay | None
    connections: set[RelayedConnection]
    buffers: LocalBuffers
    messages: Messages

    def attach(self, peer: socket.socket, relayed: pb.RelayResponse) -> NodeSession: ...

    def session(self, token: bytes) -> NodeSession: ...

    def disconnect(self, session: NodeSession) -> None: ...

    async def place(self, lease: pb.ArenaRuns, handle: int, session: NodeSession) -> None: ...


class RelayedConnection(asyncio.Protocol):
    """The asyncio protocol of one connection. session: None before the first request is answered. is_lifeline: whether
    it attached. is_former: whether it did at a coordinator that is lost.
    """

    def __init__(self, node: Node, peer: socket.socket, stall_timeout_s: float = STALL_TIMEOUT_S) -> None:
        self.session: NodeSession | None = None
        self.is_lifeline = self.is_former = False
        self._node = node
        self._peer = peer
        self._stall_timeout_s = stall_timeout_s
        self._frames = FrameBuffer()
        self._first: bytes | None = None  # ATTACH or JOIN, once it is there
        self._joins: NodeSession | None = None
        self._upstream: Upstream | None = None
        self._request: bytes | None = None  # the call under way
        self._task: asyncio.Task[None] | None = None  # connects, or fetches for the call under way
        self._full = False  # the coordinator does not read
        self._scheduled = False  # the next request will be taken in the next turn of the event loop
        self._held = 0
        self._stall: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    # -- the client's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # a socket's, so it can be written to
        self._transport.set_write_buffer_limits(0)
        self._node.connections.add(self)
        self._note()

    def connection_lost(self, error: Exception | None) -> None:
        self._node.connections.discard(self)
        self._frames.clear()
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        if self._upstream is not None:
            self._upstream.end()
        if self.is_lifeline and self.session is not None:
            self._node.disconnect(self.session)
            self.session.end()
        self._note()

    def pause_writing(self) -> None:
        """The client does not read."""
        if self._upstream is not None:
            self._upstream.pause()
        self._note()

    def resume_writing(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()
        self._note()

    def data_received(self, data: bytes) -> None:
        self._frames.add(data)
        self._take_next()

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def lose_upstream(self) -> None:
        """Leave the coordinator, without telling it that the client is gone."""
        if self._upstream is not None:
            self._upstream.abandon()
        if self._first is not None:
            self.upstream_lost()

    def _take_next(self) -> None:
        """Take the next request, if it is complete; one in a turn of the event loop, so a peer delays only itself."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._scheduled or self._full or self._is_opening:
            return self._note()
        frame = self._next_frame()
        if frame is not None:
            self._take(frame)
            if len(self._frames):
                self._scheduled = True
                transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._take_scheduled)
        return self._note()

    def _take_scheduled(self) -> None:
        self._scheduled = False
        self._read_on()

    def _read_on(self) -> None:
        """Go on after a pause."""
        if self._transport is not None and not (self._scheduled or self._full or self._is_opening):
            self._transport.resume_reading()
            self._take_next()

    @property
    def _is_opening(self) -> bool:
        return self._first is not None and self.session is None

    def _next_frame(self) -> bytes | None:
        try:
            return self._frames.take(MAX_FIRST_BODY_BYTES if self.session is None else MAX_BODY_BYTES)
        except ValueError:
            self.close()
            return None

    def _take(self, frame: bytes) -> None:
        method = HEAD.unpack_from(frame)[1]
        if self.session is None:
            self._open(method, frame)
        elif method == pb.LOCAL_METHOD_LET_GO:
            self._let_go(self.session, frame)
        elif self._request is not None or self._upstream is None or method in _NOT_OF_CLIENTS:
            self.close()  # it did not wait for its response, or there is no coordinator
        else:
            self._request = frame
            self._upstream.send(frame)

    def _let_go(self, session: NodeSession, frame: bytes) -> None:
        try:
            session.release(self._node.messages.parse(pb.LetGoRequest, frame[HEAD.size :], _WHAT).handles)
        except Refusal:
            return self.close()  # this method has no response
        if self._upstream is not None:
            self._upstream.send(frame)
        return None

    def _note(self) -> None:
        """Tell the gateway how many bytes are held for the client. Close the connection if the client stays half-way
        through a request, or without a session, for too long.
        """
        held = len(self._frames)
        if self._transport is not None:
            held += self._transport.get_write_buffer_size()
            held += 0 if self._upstream is None else self._upstream.unsent_bytes
        if held != self._held:
            self._held = held
            self._node.buffers.hold(self, held)
        stalled = self._transport is not None and (self.session is None or (len(self._frames) > 0 and not self._full))
        if stalled and self._stall is None:
            self._stall = asyncio.get_running_loop().call_later(self._stall_timeout_s, self.close)
        elif not stalled and self._stall is not None:
            self._stall.cancel()
            self._stall = None

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _open(self, method: int, frame: bytes) -> None:
        """Begin to relay, once the first request is known."""
        if self._node.relay is None:
            return self.close()  # its client tries again
        try:
            if method == pb.LOCAL_METHOD_JOIN:
                token = self._node.messages.parse(pb.JoinRequest, frame[HEAD.size :], _WHAT).session
                self._joins = self._node.session(token)
            elif method != pb.LOCAL_METHOD_ATTACH:
                raise Refusal(Reason.INVALID_REQUEST, "the first request on a connection must be ATTACH or JOIN")
        except Refusal as refusal:
            return self._refuse(refusal)
        self._first = frame
        if self._transport is not None:
            self._transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._connect(self._node.relay))
        return None

    async def _connect(self, relay: Relay) -> None:
        try:
            upstream = await Upstream.open(relay, self, attaches=self._joins is None)
        except (OSError, asyncio.TimeoutError):
            self.close()
            return
        self._task = None
        if self._transport is None or self._node.relay is not relay:
            upstream.abandon()
            self.close()
            return
        self._upstream = upstream

    def _opened(self, frame: bytes) -> None:
        """Take the response of RELAY."""
        upstream, first, transport = self._upstream, self._first, self._transport
        if HEAD.unpack_from(frame)[1] != pb.LOCAL_OUTCOME_UNSPECIFIED or not (upstream and first and transport):
            return self.close()  # of a coordinator that does not know this node any more
        self.session = self._joins
        if self.session is None:
            self.session = self._node.attach(self._peer, pb.RelayResponse.FromString(frame[HEAD.size :]))
            self.is_lifeline = True
        else:
            self._request = first
            upstream.send(first)
        return self._read_on()

    # -- the coordinator's side ----------------------------------------------------------------------------------------

    def answered(self, frame: bytes) -> None:
        session, request = self.session, self._request
        if session is None:
            return self._opened(frame)
        _, outcome = HEAD.unpack_from(frame)
        if request is not None and outcome == pb.LOCAL_OUTCOME_UNSPECIFIED and _is_read(request):
            response = pb.LocalReadResponse.FromString(frame[HEAD.size :])
            if response.lease.nodes:
                place = self._place(response, _handle_of(request), session)
                self._task = asyncio.get_running_loop().create_task(place)
                return None
        return self._answer(frame)

    async def _place(self, response: pb.LocalReadResponse, handle: int, session: NodeSession) -> None:
        """Answer a read once all its bytes are on this node."""
        try:
            await self._node.place(response.lease, handle, session)
        except Refusal as refusal:
            self._task = None
            if self._upstream is not None:
                let_go = pb.LetGoRequest(handles=[handle]).SerializeToString()
                self._upstream.send(frame_of(pb.LOCAL_METHOD_LET_GO, let_go))
            self._refuse(refusal)
        except BaseException:
            self.close()
            raise
        else:
            self._task = None
            self._answer(frame_of(pb.LOCAL_OUTCOME_UNSPECIFIED, response.SerializeToString()))

    def _refuse(self, refusal: Refusal) -> None:
        self._answer(frame_of(pb.LOCAL_OUTCOME_ERROR, status_of(refusal).SerializeToString()))

    def _answer(self, frame: bytes) -> None:
        self._request = None
        if self._transport is not None:
            self._transport.write(frame)

    def upstream_lost(self) -> None:
        self._upstream = None
        if self.is_lifeline and self.session is not None:
            self.is_former, self._full = True, False
            self._node.disconnect(self.session)
            self._read_on()
        else:
            self.close()

    def upstream_full(self, *, full: bool) -> None:
        self._full = full
        if full and self._transport is not None:
            self._transport.pause_reading()
        elif not full:
            self._read_on()
        self._note()


def _is_read(request: bytes) -> bool:
    return bool(HEAD.unpack_from(request)[1] & ~TRACED == pb.LOCAL_METHOD_READ)


def _handle_of(request: bytes) -> int:
    """The handle of a read that the coordinator has accepted."""
    traced = HEAD.unpack_from(request)[1] & TRACED
    body = request[HEAD.size + (TRACEPARENT_BYTES if traced else 0) :]
    return pb.LocalReadRequest.FromString(body).handle

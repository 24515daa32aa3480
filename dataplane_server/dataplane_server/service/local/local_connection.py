"""One connection of local.proto: it reads frames, serves one call at a time, and writes frames.

A connection needs no multiplexing, and closing it cancels exactly its call. The connection that attached carries the
session: the session ends when the client closes it, or when the kernel does because the client died.

A peer may send many requests at once. The next one is served when the peer has read the last response, and each in a
pass of the event loop of its own, so a peer delays only itself. When many peers send requests, each waits for its turn
here, unread, see `service.turns`. Bytes of half-sent requests and unread responses are bounded, see
`service.local.local_buffers`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from typing import Any, cast

from google.protobuf.message import Message

from dataplane_server.core.calls.refusal import Reason, Refusal, draining
from dataplane_server.service.call_scope import CallScope
from dataplane_server.service.error_table import status_of
from dataplane_server.service.local.frame_endpoint import FrameEndpoint
from dataplane_server.service.local.handles import Handles
from dataplane_server.service.local.local_methods import UNKNOWN_METHOD, URGENT_VERBS
from dataplane_server.service.messages.frames import STALL_TIMEOUT_S
from dataplane_server.service.turns import Turn
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import HEAD, MAX_BODY_BYTES, TRACED, TRACEPARENT_BYTES, frame_of

_WHAT = "frame body"
_OVERLOADED = status_of(Refusal(Reason.OVERLOADED, "the server has more calls than it can take; try again later"))
_OVERLOADED_BODY = _OVERLOADED.SerializeToString()
MAX_FIRST_BODY_BYTES = 16 << 10
"""Of a request on a connection without a session: AttachRequest may have a token, as long as gRPC takes it."""


class LocalConnection(asyncio.Protocol):
    """The asyncio protocol of one connection; see `frame_endpoint.Connection`."""

    def __init__(
        self, endpoint: FrameEndpoint[Any], peer: socket.socket, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> None:
        self.session: Handles[Any] | None = None
        self.is_lifeline = False
        self.call: asyncio.Task[None] | None = None
        self._endpoint = endpoint
        self.peer = peer
        self._stall_timeout_s = stall_timeout_s
        self._received = bytearray()
        self._unsent = False  # part of the last response is still here
        self._scheduled = False  # the next request will be served in a later pass of the event loop
        self._held = 0
        self._stall: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # a socket's, so it can be written to
        self._transport.set_write_buffer_limits(0)
        self._endpoint.connections.add(self)
        self._note_stall(stalled=True)  # until there is a session

    def connection_lost(self, error: Exception | None) -> None:
        self._endpoint.connections.discard(self)
        self._received.clear()
        self._unsent = False
        self._note_held()
        self._note_stall(stalled=False)
        if self.call is not None:
            asyncio.get_running_loop().call_soon(self.call.cancel)  # once it has begun, so that it ends what it holds
        if self.is_lifeline and self.session is not None:
            self._endpoint.end(self.session)

    def pause_writing(self) -> None:
        """Serve and read no more requests until the peer has read its response."""
        self._unsent = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on with the next request."""
        self._unsent = False
        self._serve_next()

    def close(self) -> None:
        """Close at once. Cancels the call that waits."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._serve_next()

    def _serve_next(self, turn: Turn | None = None) -> None:
        """Serve the next request, if it is complete, the last response is sent, and its turn has come."""
        transport = self._transport
        if self._unsent or self._scheduled or transport is None or transport.is_closing():
            return self._note_held()
        head = self._next_head()
        if head is not None:
            turn = turn or self._turn(head[1])
            if turn is Turn.LATER:
                self._scheduled = True
                transport.pause_reading()
                return self._note_held()
            self._take(head[1], self._take_body(head[0]), turn)
            if not any((self._received, self._unsent, self._held, self._stall)):
                return None  # as usual: one request, whose response is sent or will be
        if head is not None and self._received and not self._unsent:
            self._scheduled = True
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._serve_in_turn)
        elif not self._unsent:
            transport.resume_reading()
        self._note_held()
        self._note_stall(stalled=self._stalls())
        return None

    def _stalls(self) -> bool:
        """Whether the peer has to send something soon."""
        return not self._is_open or (bool(self._received) and not self._unsent)

    @property
    def _is_open(self) -> bool:
        """Whether its first request was taken."""
        return self.session is not None

    def _turn(self, number: int) -> Turn:
        """When to serve the next request."""
        if self.session is None:
            return self._endpoint.turns.greet(self._serve_in_turn)
        if number == pb.LOCAL_METHOD_LET_GO:
            return Turn.NOW
        method = self._endpoint.methods.get(number & ~TRACED, UNKNOWN_METHOD)
        return self._endpoint.turns.enter(self._serve_in_turn, urgent=method.verb in URGENT_VERBS)

    def _serve_in_turn(self, turn: Turn | None = None) -> None:
        self._scheduled = False
        self._serve_next(turn)

    def _next_head(self) -> tuple[int, int] | None:
        """The size and method of the next frame, if it is complete. Closes the connection if the frame is too large or
        comes before the response to the last one.
        """
        if len(self._received) < HEAD.size:
            return None
        size, method = HEAD.unpack_from(self._received)
        if size > (MAX_BODY_BYTES if self._is_open else MAX_FIRST_BODY_BYTES) or self.call is not None:
            self._received.clear()
            self.close()
            return None
        return (size, method) if len(self._received) >= HEAD.size + size else None

    def _take_body(self, size: int) -> bytes:
        """Remove the next frame, and return its body."""
        end = HEAD.size + size
        body = bytes(memoryview(self._received)[HEAD.size : end])
        del self._received[:end]
        return body

    def _note_held(self) -> None:
        """Tell the endpoint how many bytes are held for the peer."""
        held = len(self._received)
        if self._unsent and self._transport is not None:
            held += self._transport.get_write_buffer_size()
        if held != self._held:
            self._held = held
            self._endpoint.buffers.hold(self, held)

    def _note_stall(self, *, stalled: bool) -> None:
        """Close the connection if the peer stalls for too long."""
        if not stalled and self._stall is not None:
            self._stall.cancel()
            self._stall = None
        elif stalled and self._stall is None:
            self._stall = asyncio.get_running_loop().call_later(self._stall_timeout_s, self.close)

    def _take(self, method: int, body: bytes, turn: Turn) -> None:
        if self.session is None:
            self._open(method, body)
        elif method == pb.LOCAL_METHOD_LET_GO:
            self._release(self.session, body)
        elif turn is Turn.NEVER:
            self._refuse_overload(method)
        else:
            self._serve(method, body, self.session)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _open(self, method: int, body: bytes) -> None:
        greetings = self._endpoint.greetings
        try:
            if method not in greetings:
                names = (each.DESCRIPTOR.name.removesuffix("Request").upper() for each, _ in greetings.values())
                raise Refusal(Reason.INVALID_REQUEST, f"the first request on a connection must be {' or '.join(names)}")
            request, greet = greetings[method]
            response = greet(self._endpoint.messages.parse(request, body, _WHAT), self)
        except Refusal as refusal:
            self._send(pb.LOCAL_OUTCOME_ERROR, status_of(refusal).SerializeToString())
        else:
            if response is not None:
                self._send(pb.LOCAL_OUTCOME_UNSPECIFIED, response.SerializeToString())

    def _release(self, session: Handles[Any], body: bytes) -> None:
        try:
            handles = self._endpoint.messages.parse(pb.LetGoRequest, body, _WHAT).handles
        except Refusal:
            return self.close()  # this method has no response
        return self._endpoint.release(session, handles, self)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _serve(self, number: int, body: bytes, session: Handles[Any]) -> None:
        """Serve a call: at once, or in a task if it waits."""
        traceparent = ""
        if number & TRACED and len(body) >= TRACEPARENT_BYTES:  # else it is an unknown method
            traceparent = body[:TRACEPARENT_BYTES].decode("ascii", "replace")
            number, body = number ^ TRACED, body[TRACEPARENT_BYTES:]
        method = self._endpoint.methods.get(number, UNKNOWN_METHOD)
        with self._endpoint.begin_call(method.verb, traceparent) as call:
            if self._endpoint.draining and number != pb.LOCAL_METHOD_FINISH_WRITE:
                raise draining()
            response = method.call(self._endpoint.messages.parse(method.request, body, _WHAT), session)
            if isinstance(response, Message) and self._endpoint.unstable() is None:
                self._respond(call, response)
            else:
                self.call = asyncio.get_running_loop().create_task(self._wait(call, response))
            return
        if self._endpoint.unstable() is None:
            self._refuse(call)
        else:
            self.call = asyncio.get_running_loop().create_task(self._refuse_later(call))

    def _refuse_overload(self, number: int) -> None:
        """Refuse a call for a while, its body unread."""
        verb = self._endpoint.methods.get(number & ~TRACED, UNKNOWN_METHOD).verb
        call = self._endpoint.begin_call(verb, "")
        call.refused(Reason.OVERLOADED, _OVERLOADED)
        self._send(pb.LOCAL_OUTCOME_ERROR, _OVERLOADED_BODY)

    async def _wait(self, call: CallScope, waiting: Message | Awaitable[Message]) -> None:
        with call:
            response = waiting if isinstance(waiting, Message) else await waiting
            await self._stable()
            self.call = None
            self._respond(call, response)
            return
        await self._refuse_later(call)

    async def _refuse_later(self, call: CallScope) -> None:
        await self._stable()
        self.call = None
        self._refuse(call)

    async def _stable(self) -> None:
        if (pending := self._endpoint.unstable()) is not None:
            await pending

    def _respond(self, call: CallScope, response: Message) -> None:
        body = body_of(response)
        call.end()
        self._send(pb.LOCAL_OUTCOME_UNSPECIFIED, body)

    def _refuse(self, call: CallScope) -> None:
        self._send(pb.LOCAL_OUTCOME_ERROR, call.status.SerializeToString())

    def _send(self, outcome: int, body: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame_of(outcome, body))
            if self._unsent:
                self._note_held()


def body_of(response: Message) -> bytes:
    """Refusal LIMIT_REACHED if it is too large for a frame."""
    body = response.SerializeToString()
    if len(body) > MAX_BODY_BYTES:
        message = f"the response has {len(body)} bytes, the limit is {MAX_BODY_BYTES}; name fewer rows or fields"
        raise Refusal(Reason.LIMIT_REACHED, message)
    return body

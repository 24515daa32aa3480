"""One connection of local.proto: frames in, one call at a time, frames out.

A connection needs no multiplexing, and closing it cancels exactly its call. The connection that attached carries the
session: when it closes, by the client's wish or by the kernel as the client dies, the session ends.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from dataplane_server.core.calls.refusal import Reason, Refusal, draining
from dataplane_server.service.error_table import status_of
from dataplane_server.service.local_session import LocalSession
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import HEAD, MAX_BODY_BYTES, TRACED, TRACEPARENT_BYTES

if TYPE_CHECKING:
    from dataplane_server.service.local_endpoint import LocalEndpoint

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class LocalMethod:
    """verb: its name in metrics and logs. request: the class of its message. call: answers now, or when it can."""

    verb: str
    request: type[Message]
    call: Callable[[Any, LocalSession], Message | Awaitable[Message]]


class _Call(NamedTuple):
    """A call under way. began: on the monotonic clock. traceparent: of the trace that it belongs to, "" for none."""

    verb: str
    began: float
    traceparent: str


class LocalConnection(asyncio.Protocol):
    """The methods that asyncio calls, and what they share."""

    def __init__(self, endpoint: LocalEndpoint, peer: socket.socket) -> None:
        self.session: LocalSession | None = None
        self.call: asyncio.Task[None] | None = None
        self._endpoint = endpoint
        self._peer = peer
        self._attached = False
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a socket, so it can be written to
        self._endpoint.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._endpoint.connections.discard(self)
        if self.call is not None:
            self.call.cancel()
        if self._attached and self.session is not None:
            self._endpoint.end(self.session)

    def pause_writing(self) -> None:
        """The peer does not read its responses: take in no more requests until it does."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close at once; the call under way is cancelled."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (frame := self._next_frame()) is not None:
            self._take(*frame)

    def _next_frame(self) -> tuple[int, bytes] | None:
        """The method and body of a frame that is complete. A peer that breaks the rules of frames is cut off."""
        if len(self._received) < HEAD.size:
            return None
        size, method = HEAD.unpack_from(self._received)
        if size > MAX_BODY_BYTES or self.call is not None:
            self._received.clear()
            self.close()
            return None
        end = HEAD.size + size
        if len(self._received) < end:
            return None
        body = bytes(memoryview(self._received)[HEAD.size : end])
        del self._received[:end]
        return method, body

    def _take(self, method: int, body: bytes) -> None:
        if self.session is None:
            self._open(method, body)
        elif method == pb.LOCAL_METHOD_LET_GO:
            self._release(self.session, body)
        else:
            self._begin(method, body, self.session)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _open(self, method: int, body: bytes) -> None:
        try:
            if method == pb.LOCAL_METHOD_ATTACH:
                self._attach()
            elif method == pb.LOCAL_METHOD_JOIN:
                self.session = self._endpoint.session(_parsed(pb.JoinRequest, body).session)
                self._send(pb.LOCAL_OUTCOME_UNSPECIFIED, b"")
            else:
                raise Refusal(Reason.INVALID_REQUEST, "the first request on a connection is ATTACH or JOIN")
        except Refusal as refusal:
            self._send(pb.LOCAL_OUTCOME_ERROR, status_of(refusal).SerializeToString())

    def _attach(self) -> None:
        self.session = self._endpoint.open_session()
        self._attached = True
        arena = self._endpoint.arena
        response = pb.AttachResponse(
            session=self.session.token,
            arena_bytes=arena.file_bytes,
            nonce_offset=arena.nonce_offset,
            traces=self._endpoint.tracing is not None,
        )
        body = response.SerializeToString()
        with arena.descriptors() as descriptors:
            socket.send_fds(self._peer, [HEAD.pack(len(body), 0) + body], descriptors)

    def _release(self, session: LocalSession, body: bytes) -> None:
        try:
            session.release(_parsed(pb.LetGoRequest, body).handles)
        except Refusal:
            self.close()  # there is no response that could say so

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _begin(self, number: int, body: bytes, session: LocalSession) -> None:
        """Carry a call out, at once unless it has to wait; counted, logged and told as calls of the gRPC service."""
        began, traceparent = time.monotonic(), ""
        if number & TRACED and len(body) >= TRACEPARENT_BYTES:  # else there is no such method
            number, traceparent, body = number ^ TRACED, _text(body[:TRACEPARENT_BYTES]), body[TRACEPARENT_BYTES:]
        method = self._endpoint.methods.get(number, _UNKNOWN)
        call = _Call(method.verb, began, traceparent)
        try:
            if self._endpoint.draining and number != pb.LOCAL_METHOD_FINISH_WRITE:
                raise draining()
            response = method.call(_parsed(method.request, body), session)
            if isinstance(response, Message):
                self._respond(call, response)
                return
        except Exception as error:  # noqa: BLE001  # the last line of defence
            self._refuse(call, error)
            return
        self.call = asyncio.get_running_loop().create_task(self._await(call, response))

    async def _await(self, call: _Call, waiting: Awaitable[Message]) -> None:
        try:
            response = await waiting
            self.call = None
            self._respond(call, response)
        except asyncio.CancelledError:
            self._ended(call, "CANCELLED")
            raise
        except Exception as error:  # noqa: BLE001  # likewise
            self.call = None
            self._refuse(call, error)

    def _respond(self, call: _Call, response: Message) -> None:
        body = _body(response)
        self._ended(call, "OK")
        self._send(pb.LOCAL_OUTCOME_UNSPECIFIED, body)

    def _refuse(self, call: _Call, error: Exception) -> None:
        code, status = self._endpoint.failures.status(call.verb, error)
        self._ended(call, code)
        self._send(pb.LOCAL_OUTCOME_ERROR, status.SerializeToString())

    def _ended(self, call: _Call, code: str) -> None:
        seconds = time.monotonic() - call.began
        self._endpoint.metrics.call(call.verb, "shm", code, seconds)
        if self._endpoint.tracing is not None:
            self._endpoint.tracing.call(call.verb, "shm", code, seconds, call.traceparent)

    def _send(self, outcome: int, body: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(HEAD.pack(len(body), outcome) + body)


def _refuse_method(request: object, session: LocalSession) -> Message:
    raise Refusal(Reason.INVALID_REQUEST, "there is no such method")


_UNKNOWN = LocalMethod("Unknown", pb.LetGoRequest, _refuse_method)


def _body(response: Message) -> bytes:
    body = response.SerializeToString()
    if len(body) > MAX_BODY_BYTES:
        message = f"the response takes {len(body)} bytes, at most {MAX_BODY_BYTES} travel; name fewer rows or fields"
        raise Refusal(Reason.LIMIT_REACHED, message)
    return body


def _text(traceparent: bytes) -> str:
    """What is not ASCII is no trace context, and harms nobody."""
    return traceparent.decode("ascii", "replace")


def _parsed(kind: type[M], body: bytes) -> M:
    try:
        return kind.FromString(body)
    except DecodeError:
        raise Refusal(Reason.INVALID_REQUEST, f"the body of the frame is no {kind.DESCRIPTOR.name}") from None

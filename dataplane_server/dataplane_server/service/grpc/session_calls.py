"""The stream of a session: the first request opens or resumes the session, each later one is a heartbeat.

A server with a thousand clients reads hundreds of heartbeats a second. So they are read as bytes: an empty message is a
heartbeat, and only other messages are parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from dataplane_server.access.gate import Gate, current_caller
from dataplane_server.core.calls.answers import SessionInfo
from dataplane_server.core.calls.refusal import Reason, Refusal, session_expired
from dataplane_server.core.calls.requests import CloseSession, Heartbeat, OpenSession
from dataplane_server.service.endless import Call
from dataplane_server.service.messages.frames import STALL_TIMEOUT_S
from dataplane_server.service.shell import Shell
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.records import duration, seconds

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]


class SessionCalls:
    """Serves the streams of sessions."""

    def __init__(self, shell: Shell, gate: Gate) -> None:
        self._shell = shell
        self._gate = gate

    async def open(self, context: Context) -> Coroutine[Any, Any, None]:
        """Answer the first request of a stream. Returns the coroutine that reads the others."""
        with self._shell.endless.running() as stream:
            first = await self._first(context, stream)
            info = self._open(first)
            self._shell.sessions.enter(info.session_id, first, stream)
            response = pb.SessionResponse(session_id=info.session_id, grace=duration(info.grace_s))
            try:
                await self._shell.stable()  # or, if the server is killed now, its next life gives another client the id
                await self._shell.endless.write(context.write(response.SerializeToString()))
            except BaseException:
                self._shell.sessions.leave(info.session_id, stream)
                raise
        return self._listen(context, info.session_id)

    async def _first(self, context: Context, stream: Call) -> pb.OpenSession:
        late = Refusal(Reason.MALFORMED_STREAM, f"the stream stalled: no first request for {STALL_TIMEOUT_S:.0f} s")
        timer = asyncio.get_running_loop().call_later(STALL_TIMEOUT_S, self._shell.endless.end, stream, late)
        try:
            message = await context.read()
        finally:
            timer.cancel()
        request = pb.SessionRequest() if message is grpc.aio.EOF else _parsed(message)
        if not request.HasField("open") or request.close:
            raise Refusal(
                Reason.MALFORMED_STREAM, "the first request of a stream must open a session, and must not close it"
            )
        self._gate.permit("Session", request.open)
        return request.open

    def _open(self, request: pb.OpenSession) -> SessionInfo:
        grace_s = seconds(request.grace) if request.HasField("grace") else None
        owner = current_caller().name
        return self._shell.apply(OpenSession(request.session_id, request.client_name, grace_s, owner))

    async def _listen(self, context: Context, session_id: str) -> None:
        """Read requests until the client closes the session, or only the stream, which leaves the session open."""
        with self._shell.endless.running() as stream:
            try:
                await self._read(context, session_id)
            finally:
                self._shell.sessions.leave(session_id, stream)

    async def _read(self, context: Context, session_id: str) -> None:
        read, apply, heartbeat = context.read, self._shell.apply, Heartbeat(session_id)
        while (message := await read()) is not grpc.aio.EOF:
            if message and self._closes(message, session_id):
                await self._shell.stable()
                return
            if not apply(heartbeat):
                raise session_expired(session_id)

    def _closes(self, message: bytes, session_id: str) -> bool:
        request = _parsed(message)
        if request.HasField("open"):
            raise Refusal(Reason.MALFORMED_STREAM, "only the first request of a stream may open a session")
        if request.close:
            self._shell.apply(CloseSession(session_id))
            self._shell.sessions.closed(session_id)
        return request.close


def _parsed(message: bytes) -> pb.SessionRequest:
    try:
        return pb.SessionRequest.FromString(message)
    except DecodeError as error:
        raise Refusal(Reason.MALFORMED_STREAM, f"invalid session request: {error}") from None

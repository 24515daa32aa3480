"""Connections that join an attached session at the server's local socket, and the call that always takes one: read."""

from __future__ import annotations

import errno

from dataplane_client._connect.deadline import Deadline
from dataplane_client._memory.local_protocol import request_frame
from dataplane_client._memory.shared_arena import SharedArena
from dataplane_client._verbs._sync.frame_calls import FrameCalls
from dataplane_client._verbs._sync.runtime import LocalConnection, Work, sleep
from rl_dataplane.v1 import local_pb2 as pb

_CROWDED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)  # the server's backlog is full, or no descriptor is left here
_CROWDED_PAUSE_S = 0.01


class SessionCalls(FrameCalls):
    """The calls of one attached session."""

    transport = "shm"
    _kind = "local"

    def __init__(self, target: str, arena: SharedArena) -> None:
        super().__init__(target, traces=arena.traces)
        self._arena = arena

    def lease(self, request: pb.LocalReadRequest, deadline: Deadline, traceparent: str) -> pb.LocalReadResponse:
        """Have values kept in memory for the handle of the request, or in the response."""
        number, response = pb.LOCAL_METHOD_READ, pb.LocalReadResponse
        return self._call("ReadColumns", number, request, response, deadline, traceparent)

    def _exchange(
        self, frame: bytes, deadline: Deadline, own: list[LocalConnection] | None, after: Work | None
    ) -> tuple[int, bytes]:
        self._arena.release()  # sends handles that an earlier release could not send
        return super()._exchange(frame, deadline, own, after)

    def _begin(self, connection: LocalConnection, deadline: Deadline) -> None:
        join = request_frame(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=self._arena.token))
        outcome, _ = connection.exchange(join, deadline.left_s)
        if outcome == pb.LOCAL_OUTCOME_ERROR:
            raise ConnectionError("the server has ended the session")

    def _open_connection(self, deadline: Deadline) -> LocalConnection:
        """A new connection. A full backlog is no error: it means that many callers connect at once, so it waits."""
        while True:
            try:
                return LocalConnection.open(self._arena.address, deadline.left_s)
            except OSError as error:
                if error.errno not in _CROWDED or not deadline.left_s:
                    raise
            sleep(_CROWDED_PAUSE_S)

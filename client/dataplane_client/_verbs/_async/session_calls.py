"""Connections that join an attached session at the local socket of its memory, and the call that always takes one."""

from __future__ import annotations

import errno

from dataplane_client._connect.deadline import Deadline
from dataplane_client._memory.local_protocol import request_frame
from dataplane_client._memory.shared_arena import SharedArena
from dataplane_client._verbs._async.frame_calls import AsyncFrameCalls
from dataplane_client._verbs._async.runtime import LocalConnection, Work, sleep
from rl_dataplane.v1 import local_pb2 as pb

_CROWDED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)  # the server's backlog is full, or no descriptor is left here
_CROWDED_PAUSE_S = 0.01


class AsyncSessionCalls(AsyncFrameCalls):
    """The calls of one attached session."""

    transport = "shm"
    _kind = "local"

    def __init__(self, target: str, arena: SharedArena) -> None:
        super().__init__(target, traces=arena.traces)
        self._arena = arena

    async def fetch(self, handle: int, runs: pb.ArenaRuns, deadline: Deadline, traceparent: str) -> pb.ArenaRuns:
        """Have bytes of other nodes brought into this node's memory and kept for a handle. Where they are there."""
        number, request = pb.LOCAL_METHOD_FETCH, pb.FetchRequest(handle=handle, runs=runs)
        fetched = await self._call("ReadColumns", number, request, pb.FetchResponse, deadline, traceparent)
        return fetched.runs

    async def _exchange(
        self, frame: bytes, deadline: Deadline, own: list[LocalConnection] | None, after: Work | None
    ) -> tuple[int, bytes]:
        self._arena.release()  # sends handles that an earlier release could not send
        return await super()._exchange(frame, deadline, own, after)

    async def _begin(self, connection: LocalConnection, deadline: Deadline) -> None:
        join = request_frame(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=self._arena.token))
        outcome, _ = await connection.exchange(join, deadline.left_s)
        if outcome == pb.LOCAL_OUTCOME_ERROR:
            raise ConnectionResetError("the server has ended the session")

    async def _open_connection(self, deadline: Deadline) -> LocalConnection:
        """A new connection. A full backlog is no error: it means that many callers connect at once, so it waits."""
        while True:
            try:
                return await LocalConnection.open(self._arena.address, deadline.left_s)
            except OSError as error:
                if error.errno not in _CROWDED or not deadline.left_s:
                    raise
            await sleep(_CROWDED_PAUSE_S)

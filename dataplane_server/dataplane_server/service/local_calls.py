"""Puts, commits and reads of clients that map the arena: small values travel in the message, large ones stay in place.

A client that is lent room writes there itself, while other calls go on; nobody else sees the bytes until it finishes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable
from typing import cast

import numpy as np

from dataplane_server.core.calls import CommitResult, PutResult, Reservation, Waiting
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.space import Run
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service import translate
from dataplane_server.service.local_session import Applied, Lease, LentRoom, LocalSession, Result
from dataplane_server.service.shell import Shell
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

MAX_INLINE_BYTES = 1 << 20

Answer = pb.LocalWriteResponse | Awaitable[pb.LocalWriteResponse]
WriteRequest = pb.LocalPutRequest | pb.LocalCommitRequest


class LocalCalls:
    """The methods of local.proto that differ from those of the gRPC service."""

    def __init__(self, shell: Shell, arena: Arena, metrics: Metrics) -> None:
        self._shell = shell
        self._arena = arena
        self._metrics = metrics

    def put(self, request: pb.LocalPutRequest, session: LocalSession) -> Answer:
        header = request.header
        begun = self._shell.settled(lambda: self._shell.plane.begin_put(translate.put(header), time.monotonic()))
        return self._write(begun, self._put_applied, request, session)

    def commit(self, request: pb.LocalCommitRequest, session: LocalSession) -> Answer:
        header = request.header
        begun = self._shell.settled(lambda: self._shell.plane.begin_commit(translate.commit(header), time.monotonic()))
        return self._write(begun, self._commit_applied, request, session)

    def _write(
        self, begun: Result | Reservation | Waiting, applied: Applied, request: WriteRequest, session: LocalSession
    ) -> Answer:
        """Take a begun write to its end, or to where the client fills the room: now, or once there is room."""
        if isinstance(begun, Reservation):
            return self._use(begun, applied, request, session)
        if isinstance(begun, Waiting):
            return self._use_later(begun, applied, request, session)
        return applied(begun, 0)

    async def _use_later(
        self, waiting: Waiting, applied: Applied, request: WriteRequest, session: LocalSession
    ) -> pb.LocalWriteResponse:
        try:
            reservation = await self._shell.room(waiting, translate.seconds(request.header.wait_timeout))
        except BaseException:
            self._shell.settled(lambda: self._shell.plane.abort_write(waiting.ticket))
            raise
        return self._use(reservation, applied, request, session)

    def _use(
        self, reservation: Reservation, applied: Applied, request: WriteRequest, session: LocalSession
    ) -> pb.LocalWriteResponse:
        ticket, plane = reservation.ticket, self._shell.plane
        lent = False
        try:
            if request.HasField("values"):
                self._fill(reservation, request.values)
            elif reservation.size_bytes:
                plane.lend_reservation(ticket)
                session.hold(request.handle, LentRoom(ticket, reservation.size_bytes, applied))
                lent = True
                return pb.LocalWriteResponse(reservation=_arena_runs(reservation.runs))
            return applied(plane.finish(ticket, time.monotonic()), reservation.size_bytes)
        finally:
            if not lent:
                plane.abort_write(ticket)
            self._shell.settle()

    def _fill(self, reservation: Reservation, values: bytes) -> None:
        if len(values) != reservation.size_bytes or len(values) > MAX_INLINE_BYTES:
            message = (
                f"the message holds {len(values)} bytes of values, its header declares {reservation.size_bytes}; "
                f"at most {MAX_INLINE_BYTES} may come in a message"
            )
            raise Refusal(Reason.MALFORMED_STREAM, message)
        rest = memoryview(values)
        for run in reservation.runs:
            self._arena.view(run)[:], rest = rest[: run.size_bytes], rest[run.size_bytes :]

    def finish_write(self, request: pb.FinishWriteRequest, session: LocalSession) -> pb.LocalWriteResponse:
        room = session.take_room(request.handle)
        result = self._shell.settled(lambda: self._shell.plane.finish(room.ticket, time.monotonic()))
        return room.applied(result, room.size_bytes)

    def _put_applied(self, result: Result, size_bytes: int) -> pb.LocalWriteResponse:
        put = cast("PutResult", result)  # a ticket finishes as what it began as
        self._metrics.carried("PutSamples", "shm", size_bytes)
        return pb.LocalWriteResponse(put=translate.put_result(put))

    def _commit_applied(self, result: Result, size_bytes: int) -> pb.LocalWriteResponse:
        self._metrics.carried("CommitClaim", "shm", size_bytes)
        consumed = cast("CommitResult", result).consumed_rows
        return pb.LocalWriteResponse(commit=plane_pb.CommitClaimResponse(consumed_rows=consumed))

    def read(self, request: pb.LocalReadRequest, session: LocalSession) -> pb.LocalReadResponse:
        what, plane = request.request, self._shell.plane
        generations = translate.generations(what)
        plan = plane.begin_read(what.partition_id, list(what.sample_ids), list(what.fields), generations)
        response = pb.LocalReadResponse(header=translate.read_header(plan))
        if plan.size_bytes <= min(request.inline_bytes, MAX_INLINE_BYTES):
            response.values = b"".join(map(self._arena.view, plan.runs))
            self._shell.settled(lambda: plane.end_read(plan.ticket))
        else:
            session.hold(request.handle, Lease(plan.ticket))
            response.lease.CopyFrom(_arena_runs(plan.runs))
        self._metrics.carried("ReadColumns", "shm", plan.size_bytes)
        return response


def _arena_runs(runs: Iterable[Run]) -> pb.ArenaRuns:
    table = np.array(list(runs), "<i8").reshape(-1, 2)
    return pb.ArenaRuns(offsets=table[:, 0].tobytes(), sizes=table[:, 1].tobytes())

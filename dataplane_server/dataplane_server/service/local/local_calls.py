"""Puts, commits and reads of clients that map the arena. The message carries small values; large ones stay in place.

A client writes large values to its reservation while the server serves other calls. No other call sees the bytes before
the client finishes the write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, cast

from dataplane_server.core.calls.answers import CommitResult, PutResult, ReadPlan, Reservation, Stored, Waiting
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import EndRead, FinishWrite, ShareReservation
from dataplane_server.core.calls.values import Run, Runs
from dataplane_server.observe.metrics import Metrics, Transport
from dataplane_server.service import translate
from dataplane_server.service.local.local_session import Applied, Lease, LocalSession, Result, SharedReservation
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import MAX_INLINE_BYTES, Values, Write, begin_write, write_to
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.records import seconds

MAX_WAITING_BYTES = 256 << 20
"""Of values in the messages of all puts that wait for space."""

Answer = pb.LocalWriteResponse | Awaitable[pb.LocalWriteResponse]
WriteRequest = pb.LocalPutRequest | pb.LocalCommitRequest


class Sent(NamedTuple):
    """What came with a put or commit: its values, if the message has them, their digests, and the handle of the
    reservation.
    """

    values: bytes | None
    value_digests: bytes
    handle: int


class LocalCalls:
    """The methods of local.proto that differ from those of the gRPC service."""

    _transport: Transport = "shm"

    def __init__(self, shell: Shell, values: Values, metrics: Metrics) -> None:
        self._shell = shell
        self._values = values
        self._metrics = metrics
        self._waiting_bytes = 0

    def put(self, request: pb.LocalPutRequest, session: LocalSession) -> Answer:
        return self._write(translate.rows.put(request.header), self._put_applied, request, session)

    def commit(self, request: pb.LocalCommitRequest, session: LocalSession) -> Answer:
        return self._write(translate.rows.commit(request.header), self._commit_applied, request, session)

    def _write(self, write: Write, applied: Applied, request: WriteRequest, session: LocalSession) -> Answer:
        at_hand = request.values if request.HasField("values") else None
        begun = begin_write(self._shell, self._values, write, at_hand, request.header.digests)
        if isinstance(begun, Stored):
            return applied(begun.result, len(request.values))
        return self._go_on(begun, applied, request, session)

    def _go_on(
        self, begun: Result | Reservation | Waiting, applied: Applied, request: WriteRequest, session: LocalSession
    ) -> Answer:
        """Complete a write that has begun, or give its reservation to the client: at once, or when space is free."""
        values = request.values if request.HasField("values") else None
        sent = Sent(values, request.header.digests, request.handle)
        if isinstance(begun, Waiting):
            return self._use_later(begun, seconds(request.header.wait_timeout), applied, sent, session)
        if isinstance(begun, Reservation):
            return self._use(begun, applied, sent, session)
        return applied(begun, 0)

    async def _use_later(
        self, waiting: Waiting, wait_s: float, applied: Applied, sent: Sent, session: LocalSession
    ) -> pb.LocalWriteResponse:
        """Use the reservation when there is one. Until then only the values of the request are kept."""
        size_bytes = len(sent.values or b"")
        with self._shell.aborted_on_error(waiting.ticket):
            if size_bytes and self._waiting_bytes + size_bytes > MAX_WAITING_BYTES:
                message = (
                    f"puts that wait for space have {self._waiting_bytes} bytes of values in their messages; the limit "
                    f"is {MAX_WAITING_BYTES} (max_waiting_bytes)"
                )
                raise Refusal(Reason.LIMIT_REACHED, message, max_waiting_bytes=MAX_WAITING_BYTES)
        self._waiting_bytes += size_bytes
        try:
            reservation = await self._shell.reservation(waiting, wait_s)
        finally:
            self._waiting_bytes -= size_bytes
        used = self._use(reservation, applied, sent, session)
        return used if isinstance(used, pb.LocalWriteResponse) else await used

    def _use(self, reservation: Reservation, applied: Applied, sent: Sent, session: LocalSession) -> Answer:
        with self._shell.aborted_on_error(reservation.ticket):
            if sent.values is not None:
                self._fill(reservation, sent.values)
            elif reservation.size_bytes:
                _check_writable(session)
                self._shell.apply(ShareReservation(reservation.ticket))
                session.hold(sent.handle, SharedReservation(reservation, applied))
                return pb.LocalWriteResponse(reservation=self._located(reservation.runs))
            digests = cast("bytes", self._values.digests(reservation))  # there are few bytes
            return self._finish(reservation, applied, digests, sent.value_digests)

    def _finish(
        self, reservation: Reservation, applied: Applied, digests: bytes, value_digests: bytes
    ) -> pb.LocalWriteResponse:
        self._values.complete(reservation)
        finish = FinishWrite(reservation.ticket, digests=digests, value_digests=value_digests)
        return applied(self._shell.apply(finish), reservation.size_bytes)

    def _fill(self, reservation: Reservation, values: bytes) -> None:
        if len(values) != reservation.size_bytes or len(values) > MAX_INLINE_BYTES:
            message = (
                f"the message holds {len(values)} bytes of values, its header declares {reservation.size_bytes}; "
                f"a message may hold at most {MAX_INLINE_BYTES}"
            )
            raise Refusal(Reason.MALFORMED_STREAM, message)
        write_to(self._values, values, reservation.runs)

    def finish_write(self, request: pb.FinishWriteRequest, session: LocalSession) -> Answer:
        shared = session.take_reservation(request.handle)
        digests = self._values.digests(shared.reservation)
        if isinstance(digests, bytes):
            return self._finish(shared.reservation, shared.applied, digests, request.digests)
        return self._finish_later(shared, digests, request.digests)

    async def _finish_later(
        self, shared: SharedReservation, digests: Awaitable[bytes], value_digests: bytes
    ) -> pb.LocalWriteResponse:
        """The session holds the reservation no more, as its end would free what is being read and written here."""
        with self._shell.aborted_on_error(shared.reservation.ticket):
            return self._finish(shared.reservation, shared.applied, await digests, value_digests)

    def _put_applied(self, result: Result, size_bytes: int) -> pb.LocalWriteResponse:
        put = cast("PutResult", result)  # a ticket finishes as it began
        self._metrics.carried("PutSamples", self._transport, size_bytes)
        return pb.LocalWriteResponse(put=translate.rows.put_result(put))

    def _commit_applied(self, result: Result, size_bytes: int) -> pb.LocalWriteResponse:
        self._metrics.carried("CommitClaim", self._transport, size_bytes)
        consumed = cast("CommitResult", result).consumed_rows
        return pb.LocalWriteResponse(commit=plane_pb.CommitClaimResponse(consumed_rows=consumed))

    def read(self, request: pb.LocalReadRequest, session: LocalSession) -> pb.LocalReadResponse:
        plan = self._shell.apply(translate.rows.read(request.request))
        response = pb.LocalReadResponse(header=translate.rows.read_header(plan))
        if plan.size_bytes <= min(request.inline_bytes, MAX_INLINE_BYTES):
            response.values = b"".join(self._values.pieces(plan.runs))
            self._shell.apply(EndRead(plan.ticket))
        else:
            self._lend(plan, request.handle, session)
            response.lease.CopyFrom(self._located(plan.runs))
        self._metrics.carried("ReadColumns", self._transport, plan.size_bytes)
        return response

    def _lend(self, plan: ReadPlan, handle: int, session: LocalSession) -> None:
        """Keep the values of a read in place for the client."""
        session.hold(handle, Lease(plan.ticket))

    def _located(self, runs: Sequence[Run]) -> pb.ArenaRuns:
        """What the client is told of places."""
        return arena_runs(runs if isinstance(runs, Runs) else Runs.of(runs))


def _check_writable(session: LocalSession) -> None:
    if not session.writable:
        message = (
            f"this session may only read the memory: send the values in the message, at most {MAX_INLINE_BYTES} bytes, "
            "or over gRPC"
        )
        raise Refusal(Reason.INVALID_REQUEST, message)


def arena_runs(runs: Runs) -> pb.ArenaRuns:
    """Runs as a message."""
    return pb.ArenaRuns(offsets=runs.offsets.astype("<i8").tobytes(), sizes=runs.sizes.astype("<i8").tobytes())

"""Puts, commits and reads at the direct port: as `service.local.local_calls`, but values follow frames over the line.

The core holds their places until the last byte is there or sent, also when a repeated call takes over meanwhile, since
a thread of this process writes or reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from dataplane_server.core.calls.answers import ReadPlan, Reservation
from dataplane_server.core.calls.requests import EndRead
from dataplane_server.core.calls.values import Run, Runs
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.grpc.value_streams import MAX_STREAMS, ValueStreams
from dataplane_server.service.local.local_calls import Answer, LocalCalls
from dataplane_server.service.local.local_session import LocalSession, SharedReservation
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from rl_dataplane.v1 import local_pb2 as pb

PLACE_S = 60.0
"""How long values that are on their way may wait for a place."""


def places() -> ValueStreams:
    """Of all puts, or of all reads, at one direct port."""
    return ValueStreams(MAX_STREAMS, 8 * MAX_STREAMS, share=0.25)


class Line(Protocol):
    """The connection of a session. network: where its peer is, as `value_streams` tells it."""

    network: str

    async def receive(self, reservation: Reservation) -> None:
        """Write the bytes that follow the request to its places. Refusal MALFORMED_STREAM."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What follows a response. pieces: the bytes of some of the runs. end: called when all of them have left, or never
    will.
    """

    runs: Runs
    pieces: Callable[[Runs], Sequence[memoryview]]
    end: Callable[[], object]


class DirectSession(LocalSession):
    """The client of one connection. reading: what it is to get next. shell: None where clients hold nothing."""

    def __init__(self, shell: Shell | None, line: Line) -> None:
        super().__init__(cast("Shell", shell))
        self.line = line
        self.reading: Reading | None = None

    def take_reading(self) -> Reading | None:
        """Remove and return what the caller sends and ends."""
        reading, self.reading = self.reading, None
        return reading

    def end(self) -> None:
        super().end()
        if (reading := self.take_reading()) is not None:
            reading.end()


class DirectCalls(LocalCalls):
    """The methods whose values pass over the connection."""

    _transport = "direct"

    def __init__(self, shell: Shell, values: Values, metrics: Metrics) -> None:
        super().__init__(shell, values, metrics)
        self._streams = places()

    def finish_write(self, request: pb.FinishWriteRequest, session: LocalSession) -> Answer:
        shared = session.take_reservation(request.handle)
        return self._receive(shared, request.digests, cast("DirectSession", session).line)

    async def _receive(self, shared: SharedReservation, value_digests: bytes, line: Line) -> pb.LocalWriteResponse:
        reservation = shared.reservation
        with self._shell.aborted_on_error(reservation.ticket):
            async with self._streams.place(PLACE_S, line.network):
                await line.receive(reservation)
            digests = self._values.digests(reservation)
            once = digests if isinstance(digests, bytes) else await digests
            return self._finish(reservation, shared.applied, once, value_digests)

    def _lend(self, plan: ReadPlan, handle: int, session: LocalSession) -> None:
        end = partial(self._shell.give_back, EndRead(plan.ticket))
        cast("DirectSession", session).reading = Reading(plan.runs, self._values.pieces, end)

    def _located(self, runs: Sequence[Run]) -> pb.ArenaRuns:
        return pb.ArenaRuns()

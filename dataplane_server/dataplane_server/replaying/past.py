"""A core that goes through the calls of a data directory, as its server did.

Nothing in the directory is written or locked, so a server may use it meanwhile. The calls end where the log ended when
it was looked at.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dataplane_server.core.calls.answers import Effect
from dataplane_server.core.calls.life_calls import LeaveFor
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import Call
from dataplane_server.durability.call_codec import decode_record
from dataplane_server.durability.checkpoint import checkpoints, load_checkpoint, read_extra
from dataplane_server.durability.log_reader import LogReader, segments
from dataplane_server.durability.replica import Replica
from dataplane_server.replaying.moments import is_after, moment_of, text_of

_AT_ONCE = 1024
_PROGRESS_CALLS = 50_000


@dataclass(frozen=True)
class Covered:
    """What the log of a directory covers. starts: records before which the state is known, the oldest first. end: the
    first record that is not there. last: the moment of the last call, or of the last server's start if that is later.
    """

    folder: Path
    starts: tuple[int, ...]
    end: int
    last: float

    @property
    def first(self) -> float:
        return self._moment(self.starts[0])

    def start_before(self, until: float) -> int:
        """The newest start that is not after a moment. ValueError if all are."""
        for record in reversed(self.starts):
            if not is_after(self._moment(record), until):
                return record
        span = f"from {text_of(self.first)} to {text_of(self.last)}"
        raise ValueError(f"{self.folder} does not reach back to {text_of(until)}: it covers the time {span}")

    def _moment(self, record: int) -> float:
        """When the state before a record was the newest one: at the record's call. Record 0: at the server's start."""
        reader = LogReader(self.folder, record)
        if record == 0:
            return moment_of(reader.header, reader.header["at"])
        payloads = reader.read(1)
        return moment_of(reader.header, decode_record(payloads[0])[0][0]) if payloads else self.last


def look_at(folder: Path) -> Covered:
    """ValueError if the directory has no log, or no state to begin with."""
    found = segments(folder)
    starts = {record for record, _ in checkpoints(folder)} | {number for number, _ in found if number == 0}
    if not found or not starts:
        raise ValueError(f"{folder} has no log of a server that was started with --data-dir, or only a part of one")
    end, last = -1, -math.inf
    for number, _ in reversed(found):
        reader = LogReader(folder, number)
        last = max(last, reader.header["wall"])
        while payloads := reader.read():
            last = max(last, moment_of(reader.header, decode_record(payloads[-1])[-1][0]))
        end = max(end, reader.next_record)
        if end > number:
            break
    return Covered(folder, tuple(sorted(starts)), end, last)


class Turn(NamedTuple):
    """A call that comes next. life: which server of the directory got it. at: its time in the log, in seconds."""

    record: int
    life: int
    moment: float
    at: float
    call: Call[Any]


class Past:
    """Begins with the state before a record. record: of the next call. at: the time of the last call, in seconds."""

    def __init__(self, covered: Covered, start: int) -> None:
        """start: one of those that the directory has. If its checkpoint cannot be used, the one before it is.
        passed_over: why. Errors as Replica.
        """
        replica = Replica(covered.folder, start)
        self.plane, self.at, self.passed_over = replica.plane, replica.at, replica.passed_over
        self._reader, self._header = replica.reader, replica.header
        self.record = replica.reader.next_record
        self._folder = covered.folder
        self._calls = 0

    def turns(self, end: int, until: float = math.inf) -> Iterator[Turn]:
        """The calls before record `end` that are not after a moment. Each is to be applied before the next one is
        taken. Tells its progress on stderr. Errors as LogReader, also for what is behind the last call.
        """
        while self.record < end and (payloads := self._reader.read(min(_AT_ONCE, end - self.record))):
            header = self._reader.header
            for payload in payloads:
                for at, call in decode_record(payload):
                    moment = moment_of(header, at)
                    if is_after(moment, until):
                        return
                    self._header = header
                    yield Turn(self.record, header["epoch"], moment, at, call)
                    self._count(moment)
                    if isinstance(call, LeaveFor):
                        self._go_on_from_snapshot()
                self.record += 1
        with suppress(ValueError):  # a server has gone on since
            self._reader.ending()

    def _go_on_from_snapshot(self) -> None:
        """Take the state that the next server began with, if it came to that."""
        for record, path in checkpoints(self._folder):
            if record == self.record + 1 and read_extra(path).get("restored"):
                state, verbs, answers, history = load_checkpoint(path).plane.parts
                vars(self.plane.parts[3]).update(vars(history))
                self.plane.parts = state, verbs, answers, self.plane.parts[3]

    def apply(self, turn: Turn) -> tuple[object, list[Effect]]:
        """The answer of a call, or the Refusal in its place, and the effects."""
        self.at = turn.at
        outcome: object
        try:
            outcome = self.plane.apply(turn.call, turn.at)
        except Refusal as refusal:
            outcome = refusal.with_traceback(None)  # which refers to this frame, and so to itself
        return outcome, self.plane.take_effects()

    def run(self, end: int, until: float = math.inf) -> None:
        for turn in self.turns(end, until):
            self.apply(turn)

    def now(self, until: float) -> float:
        """The time of calls at a moment after the last call."""
        return max(self.at, self.began + until - float(self._header["wall"]))

    @property
    def began(self) -> float:
        """The time of calls at which the server began that got the last call."""
        return float(self._header["at"])

    def _count(self, moment: float) -> None:
        self._calls += 1
        if self._calls % _PROGRESS_CALLS == 0:
            print(f"{self._calls:,} calls, until {text_of(moment)}", file=sys.stderr)  # noqa: T201  # progress

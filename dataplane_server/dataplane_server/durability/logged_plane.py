"""A core whose calls are in the log before their answers leave.

Replaying the log gives the same core again, because the core is deterministic. Refused calls are logged as well: a
refusal may end an earlier attempt of its request.

Reads are not logged: a read changes nothing but the pins of its rows, and pins matter only for bytes and slots that a
call gives up while their rows are pinned. Just before such a call is logged, the reads that are under way are, with
their tickets, so the replayed core pins the same rows when it applies that call. Later reads keep nothing of what it
gave up (see `core.rows.owed`). The ends of logged reads are logged, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from dataplane_server.core.calls.answers import CommitResult, PutResult, Reservation, Stored, Waiting
from dataplane_server.core.calls.refusal import server_ended
from dataplane_server.core.calls.requests import BeginRead, Call, EndRead, FinishWrite, StoreValues
from dataplane_server.core.calls.values import Run
from dataplane_server.core.plane import DataPlane
from dataplane_server.durability.call_codec import encode_call
from dataplane_server.durability.checksums import checksums_of

A = TypeVar("A")


class Log(Protocol):
    """Where calls go. Either the log itself, or what collects them for it."""

    def append(self, payload: bytes) -> None: ...


class LoggedPlane(DataPlane):
    """Logs nothing until `log_to`."""

    _log: Log | None = None
    _ended = False

    def log_to(self, log: Log, failed: Callable[[Exception], object], memory: memoryview | None = None) -> None:
        """Append every later call to the log. failed: called when that fails. The call has changed the core, but must
        not be answered, so `failed` must end the process. memory: of the values, to log their checksums.
        """
        self._log = log
        self._memory = memory
        self._failed = failed
        self._unlogged: dict[int, BeginRead] = {}  # reads under way, by ticket

    def apply(self, call: Call[A], now: float) -> A:
        if self._log is None:
            return super().apply(call, now)
        if self._ended:
            raise server_ended()
        if isinstance(call, BeginRead):
            plan = super().apply(call, now)
            self._unlogged[plan.ticket] = call
            return plan  # type: ignore[return-value]  # it is answered with a ReadPlan
        if isinstance(call, EndRead) and self._unlogged.pop(call.ticket, None) is not None:
            return super().apply(call, now)  # type: ignore[return-value]
        if isinstance(call, FinishWrite) and self._memory is not None and (layout := self.layout(call.ticket)):
            call = replace(call, checksums=checksums_of(self._memory, *layout))  # type: ignore[assignment]  # a FinishWrite
        withheld = self._state.space.withheld
        try:
            return super().apply(call, now)
        finally:
            self._append_after(withheld, call, now)

    def store(
        self, call: StoreValues, now: float, fill: Callable[[Sequence[Run]], None]
    ) -> Stored | Reservation | Waiting | PutResult | CommitResult:
        """The values are in place before the call is logged."""
        if self._log is None:
            return super().store(call, now, fill)
        if self._ended:
            raise server_ended()
        withheld = self._state.space.withheld
        try:
            answer = super().apply(call, now)
            if isinstance(answer, Stored):
                fill(answer.runs)
                if self._memory is not None:
                    call = replace(call, checksums=checksums_of(self._memory, answer.offsets, answer.sizes))
            return answer
        finally:
            self._append_after(withheld, call, now)

    def end(self) -> None:
        """Refuse every later call: the log ends here."""
        self._ended = True

    def _append_after(self, withheld: int, call: Call[Any], now: float) -> None:
        """Log a call that was carried out. withheld: how often reads had kept bytes or slots before it."""
        if self._state.space.withheld != withheld:
            for ticket, read in self._unlogged.items():
                self._append(replace(read, ticket=ticket), now)
            self._unlogged.clear()
        self._append(call, now)

    def _append(self, call: Call[Any], now: float) -> None:
        try:
            self._log.append(encode_call(now, call))  # type: ignore[union-attr]  # there is one
        except Exception as error:  # noqa: BLE001  # whatever it is, the log lacks the call
            self._failed(error)

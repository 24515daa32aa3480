"""Puts and commits, in two steps: `begin` checks and reserves, `finish` applies.

Between the steps the caller streams bytes into the reservation; nobody sees them. `finish` checks again, since the
partition may have changed meanwhile, and applies everything at one point in time. A repeated request_id that is still
under way takes the earlier attempt's place once it has passed its own checks: the earlier caller is gone, whether or
not the new one may then wait for room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from dataplane_server.core.admission import Admission
from dataplane_server.core.calls import Commit, CommitResult, Put, PutResult, Reservation, Waiting
from dataplane_server.core.claims import ClaimDesk
from dataplane_server.core.columns import Columns, ColumnSpec, make_columns
from dataplane_server.core.limits import Limits
from dataplane_server.core.names import check_distinct, check_name, check_sample_ids, check_tags
from dataplane_server.core.partition import Checked, Partition
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.sequence_lengths import check_given_lengths
from dataplane_server.core.state import State, draining, superseded

R = TypeVar("R", PutResult, CommitResult)

_VERBS = {PutResult: "put", CommitResult: "commit"}


@dataclass(frozen=True, slots=True)
class _UnderWay:
    call: Put | Commit
    partition_id: str
    columns: Columns


class Writes:
    """Puts and commits that have begun and not yet finished, by ticket."""

    def __init__(self, state: State, claims: ClaimDesk) -> None:
        self.admission = Admission(state)
        self._state = state
        self._claims = claims
        self._under_way: dict[int, _UnderWay] = {}
        self._ticket_of: dict[str, int] = {}  # request_id -> ticket
        self._lent: set[int] = set()  # tickets of reservations that somebody fills whom we cannot stop

    def begin_put(self, put: Put, now: float) -> Reservation | Waiting | PutResult:
        """Reserve room for a put. A result means that this request was applied before."""
        if (answer := self._recall(put, PutResult, now)) is not None:
            return answer
        check_sample_ids(put.sample_ids, self._state.limits)
        check_tags(put.sample_ids, put.tags, self._state.limits)
        check_given_lengths(put.sample_ids, put.sequence_lengths)
        columns = _columns(put.columns, len(put.sample_ids), self._state.limits)
        self._check_put(put, columns)
        return self._admit(put, put.partition_id, columns)

    def begin_commit(self, commit: Commit, now: float) -> Reservation | Waiting | CommitResult:
        """Reserve room for a commit's columns. Without columns the claim ends here."""
        if (answer := self._recall(commit, CommitResult, now)) is not None:
            return answer
        if not commit.columns:
            result = CommitResult(self._claims.commit(commit.claim_id))
            self._supersede(commit.request_id)
            return self._remember(commit, result, now)
        columns = _columns(commit.columns, self._claims.size(commit.claim_id), self._state.limits)
        partition, _ = self._check_commit(commit, columns)
        return self._admit(commit, partition.partition_id, columns)

    def finish(self, ticket: int, now: float) -> PutResult | CommitResult:
        """Apply a write whose bytes have arrived. Refusal leaves nothing of it behind."""
        under_way = self._under_way.get(ticket)
        try:
            if under_way is None:
                raise superseded()
            if isinstance(under_way.call, Put):
                return self._finish_put(ticket, under_way.call, under_way.columns, now)
            return self._finish_commit(ticket, under_way.call, under_way.columns, now)
        finally:
            self.abort(ticket)

    def lend(self, ticket: int) -> None:
        """From now on the caller fills its room by itself: it stays the caller's until `finish` or `abort`."""
        self._lent.add(ticket)

    def holds_reservation(self, ticket: int) -> bool:
        return ticket in self._under_way and ticket in self.admission

    def abort(self, ticket: int) -> None:
        """Forget a write that will not finish; its room is given back. Unknown tickets are fine."""
        self._forget(ticket)
        self._lent.discard(ticket)
        self.admission.forfeit(ticket)
        self.admission.admit_waiting()

    def give_up(self, ticket: int) -> Refusal:
        """End the wait of a write whose deadline has come; what to tell its caller."""
        refusal = self.admission.no_space(ticket)
        self.abort(ticket)
        return refusal

    def drain(self) -> None:
        """End the wait of every write that has no room yet."""
        self._fail_waiting(self.admission.waiting_tickets(), draining())

    def fail_waiting_on(self, partition_id: str, refusal: Refusal) -> None:
        """End the wait of every write to a partition that is gone."""
        waiting = self.admission.waiting_tickets()
        self._fail_waiting([t for t in waiting if self._under_way[t].partition_id == partition_id], refusal)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _admit(self, call: Put | Commit, partition_id: str, columns: Columns) -> Reservation | Waiting:
        self.admission.check_can_fit(columns)
        self._supersede(call.request_id)
        ticket = self._state.ticket()
        reservation = self.admission.admit(ticket, columns)
        if reservation is None and self._state.draining:
            self.admission.forfeit(ticket)
            raise draining()
        self._under_way[ticket] = _UnderWay(call, partition_id, columns)
        self._ticket_of[call.request_id] = ticket
        return reservation or Waiting(ticket)

    def _finish_put(self, ticket: int, put: Put, columns: Columns, now: float) -> PutResult:
        checked = self._check_put(put, columns)
        partition = self._state.partition(put.partition_id)
        offsets = self.admission.redeem(ticket)
        created = partition.put(put.sample_ids, checked, columns, offsets, put.tags, put.sequence_lengths)
        self._claims.serve(partition, now)
        return self._remember(put, PutResult(created, columns.size_bytes), now)

    def _finish_commit(self, ticket: int, commit: Commit, columns: Columns, now: float) -> CommitResult:
        partition, checked = self._check_commit(commit, columns)
        partition.put((), checked, columns, self.admission.redeem(ticket), None, None)
        result = CommitResult(self._claims.commit(commit.claim_id))
        self._claims.serve(partition, now)
        return self._remember(commit, result, now)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_put(self, put: Put, columns: Columns) -> Checked:
        limits = self._state.limits
        partition = self._state.partition(put.partition_id)
        checked = partition.check_put(put.sample_ids, columns, put.tags, put.sequence_lengths, limits)
        new_rows = checked.new_rows
        if new_rows and self._state.total_rows + new_rows > limits.max_rows:
            message = f"the server holds {self._state.total_rows} rows; at most {limits.max_rows} are kept"
            raise Refusal(Reason.LIMIT_REACHED, message, max_rows=limits.max_rows)
        return checked

    def _check_commit(self, commit: Commit, columns: Columns) -> tuple[Partition, Checked]:
        partition, sample_ids = self._claims.rows_of(commit.claim_id)
        return partition, partition.check_put(sample_ids, columns, None, None, self._state.limits)

    def _recall(self, call: Put | Commit, kind: type[R], now: float) -> R | None:
        answer = self._state.answers.recall(call.request_id, _VERBS[kind], now)
        return answer if isinstance(answer, kind) else None

    def _remember(self, call: Put | Commit, result: R, now: float) -> R:
        self._state.answers.remember(call.request_id, _VERBS[type(result)], result, now)
        return result

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _supersede(self, request_id: str) -> None:
        earlier = self._ticket_of.get(request_id)
        if earlier is not None:
            self._state.fail(earlier, superseded())
            if earlier in self._lent:
                self._forget(earlier)
            else:
                self.abort(earlier)

    def _fail_waiting(self, tickets: Sequence[int], refusal: Refusal) -> None:
        for ticket in tickets:
            self._state.fail(ticket, refusal)
            self._forget(ticket)
            self.admission.leave_queue(ticket)
        self.admission.admit_waiting()  # after all of them: none is to be admitted and failed

    def _forget(self, ticket: int) -> None:
        under_way = self._under_way.pop(ticket, None)
        if under_way is not None:
            del self._ticket_of[under_way.call.request_id]


def _columns(specs: Sequence[ColumnSpec], n_rows: int, limits: Limits) -> Columns:
    """The columns of a write over n_rows rows, each checked by itself; refuses a field that stands twice."""
    for spec in specs:
        check_name("field name", spec.name, limits)
    check_distinct("field", [spec.name for spec in specs])
    return make_columns(specs, n_rows, limits)

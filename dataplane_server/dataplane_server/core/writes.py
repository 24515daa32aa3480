"""Puts and commits, in two steps: `begin` checks and reserves, `finish` applies.

Between the steps the caller streams bytes into the reservation; nobody sees them. `finish` checks again, since the
partition may have changed meanwhile, and applies everything at one point in time. A repeated request_id that is still
under way takes the earlier attempt's place once it has passed its own checks: the earlier caller is gone, whether or
not the new one may then wait for room.

A put that speaks of certain rows creates none: those of a claim (a write-back, refused once the claim has ended), those
of a reserved group (refused once it was finished or rolled back), those of given generations. That is checked at both
steps, since it may have become false while the bytes came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dataplane_server.core.admission import Admission
from dataplane_server.core.calls import Commit, CommitResult, Put, PutResult, Reservation, Waiting
from dataplane_server.core.claim_line import ClaimLine
from dataplane_server.core.claims import ClaimDesk
from dataplane_server.core.columns import Columns, ColumnSpec, make_columns
from dataplane_server.core.limits import Limits
from dataplane_server.core.names import (
    check_caller,
    check_distinct,
    check_generations,
    check_name,
    check_new_rows,
    check_sample_ids,
    check_tags,
)
from dataplane_server.core.partition import Checked, Partition
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import Slots
from dataplane_server.core.sequence_lengths import check_given_lengths
from dataplane_server.core.spans import Spans
from dataplane_server.core.state import State, draining, superseded


@dataclass(frozen=True, slots=True)
class _DonePut:
    """The answer to a put, as it is remembered."""

    created_rows: int
    size_bytes: int
    generations: Spans


@dataclass(frozen=True, slots=True)
class _UnderWay:
    call: Put | Commit
    partition_id: str
    columns: Columns


class Writes:
    """Puts and commits that have begun and not yet finished, by ticket."""

    def __init__(self, state: State, line: ClaimLine, claims: ClaimDesk) -> None:
        self.admission = Admission(state)
        self._state = state
        self._line = line
        self._claims = claims
        self._under_way: dict[int, _UnderWay] = {}
        self._ticket_of: dict[str, int] = {}  # request_id -> ticket
        self._lent: set[int] = set()  # tickets of reservations that somebody fills whom we cannot stop

    def begin_put(self, put: Put, now: float) -> Reservation | Waiting | PutResult:
        """Reserve room for a put. A result means that this request was applied before."""
        answer = self._state.answers.recall(put.request_id, "put", now)
        if isinstance(answer, _DonePut):
            return PutResult(answer.created_rows, answer.size_bytes, answer.generations.numbers())
        _check_form(put, self._state.limits)
        columns = _columns(put.columns, 1 if put.shared else len(put.sample_ids), self._state.limits)
        self._check_put(put, columns, now)
        return self._admit(put, put.partition_id, columns, now, urgent=bool(put.claim_id))

    def begin_commit(self, commit: Commit, now: float) -> Reservation | Waiting | CommitResult:
        """Reserve room for a commit's columns. Without columns the claim ends here."""
        answer = self._state.answers.recall(commit.request_id, "commit", now)
        if isinstance(answer, CommitResult):
            return answer
        if not commit.columns:
            result = CommitResult(self._claims.commit(commit.claim_id, now))
            self._supersede(commit.request_id)
            self._state.answers.remember(commit.request_id, "commit", result, now)
            return result
        columns = _columns(commit.columns, self._claims.size(commit.claim_id, now), self._state.limits)
        partition, _, _ = self._check_commit(commit, columns, now)
        return self._admit(commit, partition.partition_id, columns, now, urgent=True)

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

    def _admit(
        self, call: Put | Commit, partition_id: str, columns: Columns, now: float, *, urgent: bool
    ) -> Reservation | Waiting:
        self.admission.check_can_fit(columns)
        self._supersede(call.request_id)
        ticket = self._state.ticket()
        reservation = self.admission.admit(ticket, columns, now, urgent=urgent)
        if reservation is None and self._state.draining:
            self.admission.forfeit(ticket)
            raise draining()
        self._under_way[ticket] = _UnderWay(call, partition_id, columns)
        self._ticket_of[call.request_id] = ticket
        return reservation or Waiting(ticket)

    def _finish_put(self, ticket: int, put: Put, columns: Columns, now: float) -> PutResult:
        checked = self._check_put(put, columns, now)
        partition = self._state.partition(put.partition_id)
        offsets = self.admission.redeem(ticket)
        self._state.births.tell(now)
        created = 0
        if put.shared:
            partition.put_shared(checked, columns, offsets)
        else:
            created = partition.put(put.sample_ids, checked, columns, offsets, put.tags, put.sequence_lengths)
        partition.count_put(len(put.sample_ids), columns.size_bytes)
        self._note(put, partition, partition.rows.ids(checked.slots) if put.shared else put.sample_ids, now)
        self._line.serve(partition, now)
        generations = partition.rows.generations(checked.slots[: len(put.sample_ids)])
        done = _DonePut(created, columns.size_bytes, Spans(generations))
        self._state.answers.remember(put.request_id, "put", done, now)
        return PutResult(created, columns.size_bytes, generations)

    def _finish_commit(self, ticket: int, commit: Commit, columns: Columns, now: float) -> CommitResult:
        partition, sample_ids, checked = self._check_commit(commit, columns, now)
        partition.put((), checked, columns, self.admission.redeem(ticket), None, None)
        self._note(commit, partition, sample_ids, now)
        result = CommitResult(self._claims.commit(commit.claim_id, now, columns.size_bytes))
        self._line.serve(partition, now)
        self._state.answers.remember(commit.request_id, "commit", result, now)
        return result

    def _note(self, call: Put | Commit, partition: Partition, sample_ids: Sequence[str], now: float) -> None:
        self._state.journal.note(
            "wrote_back" if call.claim_id else "put",
            partition.partition_id,
            sample_ids,
            now,
            who=call.caller if isinstance(call, Put) else "",
            claim_id=call.claim_id,
            fields=tuple(column.name for column in call.columns),
        )

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_put(self, put: Put, columns: Columns, now: float) -> Checked:
        partition = self._state.partition(put.partition_id)
        if put.shared:
            return partition.check_shared(partition.groups.of_reservation(put.reservation_id), columns)
        slots = partition.rows.find_existing(put.sample_ids)
        self._check_access(put, partition, slots, now)
        limits = self._state.limits
        checked = partition.check_put(put.sample_ids, slots, columns, put.tags, put.sequence_lengths, limits)
        check_new_rows(self._state.total_rows, checked.new_rows, limits)
        return checked

    def _check_access(self, put: Put, partition: Partition, slots: Slots, now: float) -> None:
        """Refuse a put to rows that are not its own, or that are others than the caller means."""
        of_certain_rows = put.claim_id or put.reservation_id or put.generations is not None
        if not of_certain_rows and not partition.groups.reserved:
            return
        there = slots[slots >= 0]
        if put.claim_id:
            self._claims.size(put.claim_id, now)  # refuses one that is not open, whatever became of its rows
        if put.reservation_id:
            partition.groups.check_members(put.reservation_id, there)
        else:
            partition.groups.check_free(there)
        if of_certain_rows:
            partition.rows.find(put.sample_ids)
        if put.generations is not None:
            partition.rows.check_same(put.sample_ids, slots, put.generations)
        if put.claim_id:
            self._claims.check_write_back(put.claim_id, partition, slots, now)

    def _check_commit(self, commit: Commit, columns: Columns, now: float) -> tuple[Partition, Sequence[str], Checked]:
        partition, sample_ids = self._claims.rows_of(commit.claim_id, now)
        slots = partition.rows.find(sample_ids)
        checked = partition.check_put(sample_ids, slots, columns, None, None, self._state.limits)
        return partition, sample_ids, checked

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


def _check_form(put: Put, limits: Limits) -> None:
    """Refuse what is malformed whatever the server holds."""
    check_caller(put.caller, limits)
    if not put.shared:
        check_sample_ids(put.sample_ids, limits)
        check_tags(put.sample_ids, put.tags, limits)
        check_given_lengths(put.sample_ids, put.sequence_lengths)
        check_generations(put.sample_ids, put.generations)
        return
    of_rows = any(given is not None for given in (put.tags, put.sequence_lengths, put.generations))
    if put.sample_ids or not put.reservation_id or put.claim_id or of_rows or not put.columns:
        message = "a shared put names a reservation and at least one column, and neither samples nor tags nor a claim"
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=put.partition_id)


def _columns(specs: Sequence[ColumnSpec], n_rows: int, limits: Limits) -> Columns:
    """The columns of a write over n_rows rows, each checked by itself; refuses a field that stands twice."""
    for spec in specs:
        check_name("field name", spec.name, limits)
    check_distinct("field", [spec.name for spec in specs])
    return make_columns(specs, n_rows, limits)

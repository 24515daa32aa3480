"""Puts and commits. If their values are at hand, one call (StoreValues) stores them, unless they have to wait. Others
take two steps: PutSamples and CommitClaim check and reserve, FinishWrite applies.

A put that creates rows first passes the entrance of its partition, where it may wait; see `verbs.flow`.

Between the steps the caller streams bytes into its reservation, where no other call sees them. FinishWrite checks
again if there was any other call, since the partition may have changed, and applies everything at one point in time.

A put that names certain rows creates none: those of a claim (a write-back, refused once the claim has ended), those of
a reserved group (refused once the group was finished or aborted), those of given generations, those of a put with
only_if or existing_only. That may become false while the bytes arrive, so it is refused at either step. Only a put with
add_to_group creates rows of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dataplane_server.core.calls.answers import Admitted, CommitResult, PutResult, Reservation, Stored, Waiting
from dataplane_server.core.calls.columns import Columns, ColumnSpec, make_columns
from dataplane_server.core.calls.digests import check_hashed, digests_of_write
from dataplane_server.core.calls.filters import ALL_ROWS, Filter, check_filter
from dataplane_server.core.calls.fingerprints import check_digest
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.names import (
    check_caller,
    check_distinct,
    check_generations,
    check_names,
    check_sample_ids,
    check_tags,
)
from dataplane_server.core.calls.refusal import Reason, Refusal, draining, superseded
from dataplane_server.core.calls.requests import CommitClaim, FinishWrite, PutSamples, StoreValues
from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.bookkeeping import DIGEST_BYTES, WRITE_BYTES, id_bytes
from dataplane_server.core.rows.fields import check_given_lengths, check_once
from dataplane_server.core.rows.group_table import Group
from dataplane_server.core.rows.matching import fitting
from dataplane_server.core.rows.shared_payloads import DIGEST_SIZE
from dataplane_server.core.state.entrance import Entry
from dataplane_server.core.state.partition import Checked, Partition
from dataplane_server.core.state.put_checks import check_put, check_shared
from dataplane_server.core.state.state import Fact, State
from dataplane_server.core.verbs.admission import Admission
from dataplane_server.core.verbs.appends import begin_append, check_append
from dataplane_server.core.verbs.claims import Claims
from dataplane_server.core.verbs.flow import Flow
from dataplane_server.core.verbs.freshness import Freshness

_NO_DIGESTS: Mapping[str, bytes] = {}
_CREATES_NONE = "; the put creates none (existing_only; append_tokens creates rows with create=True)"


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """kept_bytes: memory that it takes meanwhile. revisions: of the rows of an append when it began."""

    call: PutSamples | CommitClaim
    partition_id: str
    columns: Columns
    kept_bytes: int
    revisions: Int64Array | None = None


class _LastCheck(NamedTuple):
    """Of the last write that began. version: of the state; as long as it is the same, so is what a check says, except
    of a filter, which may ask for ages.
    """

    ticket: int
    version: int
    checked: Checked


class Writes:
    """Puts and commits that have begun and not yet finished, by ticket."""

    def __init__(self, state: State, admission: Admission, flow: Flow, claims: Claims, freshness: Freshness) -> None:
        self._admission = admission
        self._flow = flow
        self._state = state
        self._claims = claims
        self._freshness = freshness
        self._under_way: dict[int, _UnderWay] = {}
        self._ticket_of: dict[str, int] = {}  # by request_id
        self._shared: set[int] = set()  # tickets of reservations that a client writes to through shared memory
        self._former: dict[int, None] = {}  # those of a former server, whose clients may still write
        self._last_check: _LastCheck | None = None

    # -- begin ---------------------------------------------------------------------------------------------------------

    def begin(self, call: PutSamples | CommitClaim, now: float) -> Reservation | Waiting | CommitResult:
        """Check and reserve. A commit without columns ends here."""
        if isinstance(call, CommitClaim) and not call.columns:
            return CommitResult(self._claims.commit(call.claim_id))
        begun, checked = self._checked(call, now)
        ticket = self._state.ticket()
        enters = self._enters(ticket, begun, checked.new_rows, now)
        return self._hold(ticket, begun, checked, self._admitted(ticket, begun, now) if enters else None)

    def store(self, at_hand: StoreValues, now: float) -> Stored | Reservation | Waiting | CommitResult:
        """As `begin`, and apply the write as well. Not if it has to wait, or declares another size, or if more has to
        be done with its values than to keep them: digests of those put once, copies of what rows of an append have. Nor
        if rows went for it: it may get their bytes, which must stay until the log says that they are gone.
        """
        call = at_hand.write
        if (isinstance(call, PutSamples) and (call.once or call.append)) or not call.columns:
            return self.begin(call, now)
        begun, checked = self._checked(call, now)
        ticket, partition = self._state.ticket(), self._state.partitions[begun.partition_id]
        asks = checked.new_rows > 0 and not self._flow.is_open(partition)
        try:
            if asks and not self._enters(ticket, begun, checked.new_rows, now):
                return self._hold(ticket, begun, checked, None)
            reservation = self._admitted(ticket, begun, now)
            overwrites = self._state.space.freed
            if reservation is None or overwrites or begun.columns.size_bytes != at_hand.size_bytes:
                if not asks:  # it counts as coming, for a policy that is set meanwhile
                    self._enters(ticket, begun, checked.new_rows, now)
                return self._hold(ticket, begun, checked, reservation)
            if asks:
                checked = self._check_again(ticket, begun, now)  # rows may have been evicted
            digests = _digests(partition, begun, checked, at_hand.value_digests, b"")
            offsets, sizes = self._admission.redeem(ticket)
            result = self._apply(partition, begun, checked, offsets, _NO_DIGESTS, digests, now)
            return Stored(result, reservation.runs, offsets, sizes)
        except BaseException:
            self._admission.release(ticket)
            raise
        finally:
            if asks and ticket not in self._under_way:  # also if it is refused after it has entered
                self._flow.leave(ticket)

    def _checked(self, call: PutSamples | CommitClaim, now: float) -> tuple[_UnderWay, Checked]:
        """A write that may begin."""
        state, urgent = self._state, bool(call.claim_id)
        if isinstance(call, CommitClaim):
            columns = _columns(call.columns, self._claims.size(call.claim_id), state.limits)
            partition, sample_ids = self._claims.rows_of(call.claim_id)
            kept, revisions = 0, None
            checked = self._check_commit(call, partition, sample_ids, columns)
        else:
            kept, revisions = _check_form(call, state.limits), None
            columns = _columns(call.columns, 1 if call.shared else len(call.sample_ids), state.limits)
            partition = state.partition(call.partition_id)
            if call.append:
                columns, revisions = begin_append(partition, call.sample_ids, columns)
            kept += id_bytes(call.sample_ids) + DIGEST_BYTES * len(call.once) * len(call.sample_ids)
            checked = self._check_put(partition, call, columns, revisions, now)
            kept += partition.rows.growth_bytes(checked.new_rows)
        kept += WRITE_BYTES + (4 if columns.kept is None else 8) * columns.entries.nbytes
        if partition.definition.open:
            kept += partition.declare_bytes(column.name for column in columns.each)
        begun = _UnderWay(call, partition.partition_id, columns, kept, revisions)
        self._admission.check(columns, node=call.node, urgent=urgent)
        state.bookkeeping.check(begun.kept_bytes, urgent=urgent)
        return begun, checked

    def _hold(
        self, ticket: int, begun: _UnderWay, checked: Checked, reservation: Reservation | None
    ) -> Reservation | Waiting:
        """A write is under way until its bytes have arrived."""
        self._under_way[ticket] = begun
        self._last_check = _LastCheck(ticket, self._state.version, checked)
        self._state.bookkeeping.add(begun.kept_bytes)
        self._ticket_of[begun.call.request_id] = ticket
        return reservation or Waiting(ticket)

    def _admitted(self, ticket: int, begun: _UnderWay, now: float) -> Reservation | None:
        """The space of a write that was checked and has entered; None if it waits for that."""
        call = begun.call
        reservation = self._admission.admit(ticket, begun.columns, now, node=call.node, urgent=bool(call.claim_id))
        if reservation is None and self._state.draining:
            self.abort(ticket)
            raise draining()
        return reservation

    def _enters(self, ticket: int, begun: _UnderWay, new_rows: int, now: float) -> bool:
        """Whether a write need not wait for room in its partition."""
        if not new_rows or not isinstance(begun.call, PutSamples) or begun.call.reservation_id:
            return True
        partition = self._state.partition(begun.partition_id)
        entry = Entry(begun.call, new_rows, begun.columns.size_bytes, now, partition.rows_put_total)
        return self._flow.enter_put(partition, ticket, entry)

    def let_in(self, ticket: int, now: float) -> None:
        """A put that waited has room in its partition, and now asks for space."""
        try:
            begun = self._under_way[ticket]
            reservation = self._admission.admit(ticket, begun.columns, now, node=begun.call.node)
        except Refusal as refusal:
            self.fail(ticket, refusal)
            return
        if reservation is not None:
            self._state.effects.append(Admitted(ticket, reservation))

    # -- finish --------------------------------------------------------------------------------------------------------

    def call_of(self, ticket: int) -> PutSamples | CommitClaim | None:
        """The call that began a write which is under way; None for an unknown ticket."""
        under_way = self._under_way.get(ticket)
        return None if under_way is None else under_way.call

    def partition_of(self, ticket: int) -> str:
        """The partition of a write that is under way."""
        return self._under_way[ticket].partition_id

    def once_layout(self, ticket: int) -> tuple[Int64Array, Int64Array] | None:
        """As `Admission.layout`, of the columns that are put once; None if there is none."""
        call = self.call_of(ticket)
        if not isinstance(call, PutSamples) or not call.once:
            return None
        layout = self._admission.layout(ticket)
        if layout is None:
            return None
        rows = [row for row, column in enumerate(call.columns) if column.name in call.once]
        return layout[0][rows], layout[1][rows]

    def finish(self, call: FinishWrite, now: float) -> PutResult | CommitResult:
        """Apply a write whose bytes have arrived. It ends even if it is refused, and then leaves nothing behind."""
        ticket = call.ticket
        begun = self._under_way.get(ticket)
        try:
            if begun is None:
                raise superseded()
            once = _digests_by_field(begun.call, call.digests) if isinstance(begun.call, PutSamples) else _NO_DIGESTS
            checked = self._still_checked(ticket) or self._check_again(ticket, begun, now)
            partition = self._state.partition(begun.partition_id)
            digests = _digests(partition, begun, checked, call.value_digests, call.checksums)
            offsets, _ = self._admission.redeem(ticket)
            return self._apply(partition, begun, checked, offsets, once, digests, now)
        finally:
            self.abort(ticket)

    def _apply(
        self,
        partition: Partition,
        begun: _UnderWay,
        checked: Checked,
        offsets: Int64Array,
        once: Mapping[str, bytes],
        digests: Int64Array | None,
        now: float,
    ) -> PutResult | CommitResult:
        """Make rows of a write that was just checked and whose values are at the offsets."""
        call = begun.call
        if isinstance(call, PutSamples):
            return self._apply_put(call, partition, begun.columns, checked, offsets, once, digests, now)
        sample_ids = partition.rows.ids(checked.slots)
        partition.put((), checked, begun.columns, offsets, None, None, digests=digests)
        self._report(call, partition, sample_ids)
        return CommitResult(self._claims.commit(call.claim_id, begun.columns.size_bytes))

    def _apply_put(
        self,
        put: PutSamples,
        partition: Partition,
        columns: Columns,
        checked: Checked,
        offsets: Int64Array,
        once: Mapping[str, bytes],
        digests: Int64Array | None,
        now: float,
    ) -> PutResult:
        group = partition.groups.reserved[put.reservation_id] if put.reservation_id else None
        created, outcomes, sent_bytes = 0, b"", columns.sent_bytes
        if put.shared and group is not None:
            partition.put_shared(group, checked, columns, offsets, digests)
        else:
            if checked.new_rows:
                self._state.generations.record(now)
            if not put.claim_id and group is None and checked.new_rows < len(checked.slots):
                outcomes = partition.note_replaced(checked.slots, columns)
            more = (put.tags, put.sequence_lengths, group, once, digests)
            created = partition.put(put.sample_ids, checked, columns, offsets, *more)
        partition.count_put(len(put.sample_ids), sent_bytes)
        self._report(put, partition, partition.rows.ids(checked.slots) if put.shared else put.sample_ids)
        generations = partition.rows.generations(checked.slots[: len(put.sample_ids)])
        hint = "" if group is None else self._freshness.abort_hint(partition, group)
        return PutResult(created, sent_bytes, generations, hint, outcomes)

    def _report(self, call: PutSamples | CommitClaim, partition: Partition, sample_ids: Sequence[str]) -> None:
        what = "wrote_back" if call.claim_id else "put"
        if isinstance(call, PutSamples):
            what, who = "appended" if call.append else what, call.caller
        else:
            who = self._claims.client_of(call.claim_id)
        fields = tuple([column.name for column in call.columns])
        self._state.report(Fact(what, partition.partition_id, sample_ids, who, "", call.claim_id, fields))

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check(self, begun: _UnderWay, now: float) -> Checked:
        """Refuse a write that contradicts the rows as they are now."""
        if isinstance(begun.call, PutSamples):
            partition = self._state.partition(begun.partition_id)
            return self._check_put(partition, begun.call, begun.columns, begun.revisions, now)
        partition, sample_ids = self._claims.rows_of(begun.call.claim_id)
        return self._check_commit(begun.call, partition, sample_ids, begun.columns)

    def _check_commit(
        self, call: CommitClaim, partition: Partition, sample_ids: Sequence[str], columns: Columns
    ) -> Checked:
        check_hashed(partition.definition, call)
        slots = partition.rows.find(sample_ids)
        return check_put(partition, sample_ids, slots, columns, None, None, self._state.limits)

    def _check_again(self, ticket: int, begun: _UnderWay, now: float) -> Checked:
        """As _check, of a write that has entered its partition, and whose node still has its bytes."""
        self._state.space.capacity_of(begun.call.node)  # refuses a node that is gone
        checked, call = self._check(begun, now), begun.call
        if checked.new_rows and isinstance(call, PutSamples) and not call.reservation_id:
            partition = self._state.partition(begun.partition_id)
            self._flow.check_still(partition, ticket, checked.new_rows, begun.columns.size_bytes)
        return checked

    def _check_put(
        self, partition: Partition, put: PutSamples, columns: Columns, revisions: Int64Array | None, now: float
    ) -> Checked:
        limits = self._state.limits
        check_hashed(partition.definition, put)
        if put.shared:
            _, group = self._state.reserved_group(put.reservation_id, partition)
            return check_shared(partition, group, columns, limits)
        slots = partition.rows.find_existing(put.sample_ids)
        self._check_access(put, partition, slots)
        if put.create_only:
            _check_new(put, slots)
        if put.only_if is not None:
            _check_condition(put, put.only_if, partition, slots, now)
        if revisions is not None:
            check_append(partition, put.sample_ids, slots, columns, revisions)
        checked = check_put(partition, put.sample_ids, slots, columns, put.tags, put.sequence_lengths, limits)
        if put.once:
            check_once(put.partition_id, partition.fields, put.once)
        if partition.rows.closed and not put.reservation_id:
            partition.rows.check_creates_none(put.sample_ids, slots)
        self._state.check_new_rows(checked.new_rows)
        return checked

    def _check_access(self, put: PutSamples, partition: Partition, slots: Slots) -> None:
        """Refuse a put to rows that the caller may not write to, or that are not the rows it means."""
        of_certain_rows = put.claim_id or put.reservation_id or put.generations is not None or put.existing_only
        if not of_certain_rows and not partition.groups.reserved:
            return
        existing = slots[slots >= 0]
        if put.claim_id:
            self._claims.size(put.claim_id)  # refuses a claim that is not open before it looks at the rows
        if put.reservation_id:
            _, group = self._state.reserved_group(put.reservation_id, partition)
            partition.groups.check_members(group, existing)
            if put.add_to_group:
                self._check_room(group, len(slots) - len(existing))
        else:
            partition.groups.check_free(existing)
        if of_certain_rows and not put.add_to_group:
            partition.rows.find(put.sample_ids, _CREATES_NONE if put.existing_only else "")
        if put.generations is not None:
            partition.rows.check_same(put.sample_ids, slots, put.generations)
        if put.claim_id:
            self._claims.check_write_back(put.claim_id, partition, slots)

    def _check_room(self, group: Group, new: int) -> None:
        most = self._state.limits.max_group_rows
        if group.size + new > most:
            rows = group.size + new
            message = f"group {group.group_id!r} would have {rows} rows; the limit is {most} (max_group_rows)"
            raise Refusal(Reason.INVALID_REQUEST, message, group_id=group.group_id)

    def _still_checked(self, ticket: int) -> Checked | None:
        """What the check of a write said when it began, if it has no filter, no other call came, and it changed nothing
        itself.
        """
        last, self._last_check = self._last_check, None
        if last is None or last.ticket != ticket or last.version + 1 != self._state.version:
            return None
        return None if getattr(self.call_of(ticket), "only_if", None) else last.checked

    # -- ends ----------------------------------------------------------------------------------------------------------

    def share(self, ticket: int) -> None:
        """The client fills its reservation by itself; nothing but `finish` and `abort` frees it from now on. Refusal
        SUPERSEDED for one that is over, whose place others may have.
        """
        if not self.is_open(ticket):
            raise superseded()
        self._shared.add(ticket)

    def is_open(self, ticket: int) -> bool:
        """Whether bytes may still be copied into the runs of a reservation."""
        return ticket in self._under_way and ticket in self._admission

    def abort(self, ticket: int) -> None:
        """Forget a write and release its reservation. Unknown tickets are ignored."""
        self._forget(ticket)
        self._flow.leave(ticket)
        self._shared.discard(ticket)
        if ticket not in self._former:
            self._admission.release(ticket)

    def give_up(self, ticket: int, held: str) -> Refusal:
        """End the wait of a write at its deadline. held: see `Holders.summary`. Returns what to tell its caller."""
        refusal = self._flow.give_up(ticket) or self._admission.no_space(ticket, held)
        self.abort(ticket)
        return refusal

    def supersede(self, request_id: str) -> bool:
        """Fail an earlier attempt of a request that is under way. Returns whether there was one."""
        earlier = self._ticket_of.get(request_id)
        if earlier is None:
            return False
        self._state.fail(earlier, superseded())
        if earlier in self._shared:
            self._forget(earlier)
            self._flow.leave(earlier)
        else:
            self.abort(earlier)
        return True

    def drain(self) -> None:
        """Fail every write, group and draw that waits."""
        self._fail([*self._admission.waiting_tickets(), *self._flow.tickets()], draining())

    def recover(self, refusal: Refusal, *, held: bool) -> None:
        """End every write. held: what clients write to through shared memory stays reserved until `let_go`."""
        self._former.update(dict.fromkeys(sorted(self._shared)))
        self._shared.clear()
        self._fail([*self._admission.waiting_tickets(), *self._flow.tickets()], refusal)
        for ticket in list(self._under_way):
            self.abort(ticket)
        if not held:
            self.let_go()

    def let_go(self) -> None:
        """Free what clients of a former server may have written to."""
        while self._former:
            self._admission.release(self._former.popitem()[0])

    def fail_waiting_on(self, partition_id: str, refusal: Refusal) -> None:
        """Fail all that waits to get into a partition that is gone."""
        waiting = self._admission.waiting_tickets()
        of_writes = [ticket for ticket in waiting if self._under_way[ticket].partition_id == partition_id]
        self._fail([*of_writes, *self._flow.tickets(partition_id)], refusal)

    def fail_waiting_for(self, node: int, refusal: Refusal) -> None:
        """Fail all that waits to write to a node that is gone."""
        waiting = [*self._admission.waiting_tickets(), *self._flow.tickets()]
        of_node = [ticket for ticket in waiting if (call := self.call_of(ticket)) is not None and call.node == node]
        self._fail(of_node, refusal)

    def fail(self, ticket: int, refusal: Refusal) -> None:
        """End a write, group or draw that waits."""
        self._state.fail(ticket, refusal)
        self.abort(ticket)

    def _fail(self, tickets: Sequence[int], refusal: Refusal) -> None:
        for ticket in tickets:
            self.fail(ticket, refusal)

    def _forget(self, ticket: int) -> None:
        under_way = self._under_way.pop(ticket, None)
        if under_way is not None:
            del self._ticket_of[under_way.call.request_id]
            self._state.bookkeeping.add(-under_way.kept_bytes)

    @property
    def kept_bytes(self) -> int:
        """Memory of all writes under way."""
        return sum(under_way.kept_bytes for under_way in self._under_way.values())


def _digests(
    partition: Partition, begun: _UnderWay, checked: Checked, given: bytes, checksums: bytes
) -> Int64Array | None:
    """What its producer hashed of each value of a write; None where values have no digests."""
    if not partition.definition.digests or not begun.columns.each:
        return None
    call = begun.call
    ids = call.sample_ids if isinstance(call, PutSamples) else partition.rows.ids(checked.slots)
    return digests_of_write(begun.partition_id, begun.columns, ids, given, checksums)


def _check_new(put: PutSamples, slots: Slots) -> None:
    """Refusal SAMPLE_EXISTS names the first row that exists."""
    resident = np.flatnonzero(slots >= 0)
    if resident.size:
        first = put.sample_ids[int(resident[0])]
        more = f" (and {resident.size - 1} more of the call)" if resident.size > 1 else ""
        message = f"partition {put.partition_id!r}: sample {first!r}{more} exists (create_only); nothing was put"
        raise Refusal(Reason.SAMPLE_EXISTS, message, partition_id=put.partition_id, sample_id=first)


def _check_condition(put: PutSamples, only_if: Filter, partition: Partition, slots: Slots, now: float) -> None:
    """Refusal CONDITION_FAILED names the first row that does not exist, or does not fit only_if."""
    fits = slots >= 0
    fits[fits] = fitting(partition.rows, only_if, slots[fits], now, keep=False)
    unfit = np.flatnonzero(~fits)
    if unfit.size:
        first = put.sample_ids[int(unfit[0])]
        more = f" (and {unfit.size - 1} more of the call)" if unfit.size > 1 else ""
        rule = "does not exist" if slots[unfit[0]] < 0 else "does not fit only_if"
        message = f"partition {put.partition_id!r}: sample {first!r}{more} {rule}; nothing was put"
        raise Refusal(Reason.CONDITION_FAILED, message, partition_id=put.partition_id, sample_id=first)


def _check_form(put: PutSamples, limits: Limits) -> int:
    """Refuse what is malformed in any state of the server. Returns the memory of tags and filter."""
    check_caller(put.caller, limits)
    if put.digest:
        check_digest(put.digest)
    filter_bytes = check_filter(put.only_if or ALL_ROWS, with_age=True)
    certain = put.claim_id or put.shared or put.generations is not None
    if put.add_to_group and (certain or not put.reservation_id):
        message = "a put that adds to a group names its reservation, and neither a claim nor generations"
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=put.partition_id)
    if put.once:
        _check_once(put)
    if put.create_only and (certain or put.reservation_id or put.only_if is not None):
        message = "a put with create_only names neither a claim nor a reservation nor generations nor only_if"
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=put.partition_id)
    if put.existing_only and (put.create_only or put.add_to_group or put.shared):
        message = "a put with existing_only is not shared and creates nothing: no create_only, no add_to_group"
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=put.partition_id)
    if put.append and (put.shared or not put.columns):
        message = "an append names at least one column and is not shared"
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=put.partition_id)
    if not put.shared:
        check_sample_ids(put.sample_ids, limits)
        check_given_lengths(put.sample_ids, put.sequence_lengths)
        check_generations(put.sample_ids, put.generations)
        return filter_bytes + check_tags(put.sample_ids, put.tags, limits)
    of_rows = any(of is not None for of in (put.tags, put.sequence_lengths, put.generations, put.only_if))
    if put.sample_ids or not put.reservation_id or put.claim_id or of_rows or not put.columns:
        message = (
            "a shared put names a reservation and at least one column, and neither samples nor tags nor a claim nor "
            "only_if"
        )
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=put.partition_id)
    return 0


def _check_once(put: PutSamples) -> None:
    """Refuse `once` for what is not a column of the put, and for one value of a whole group."""
    check_distinct("field put once", put.once)
    names = {column.name for column in put.columns}
    others = [name for name in put.once if name not in names]
    if others or put.shared:
        rule = f"the put has no column {others[0]!r} to keep once" if others else "a shared put is kept once anyway"
        raise Refusal(Reason.INVALID_REQUEST, f"partition {put.partition_id!r}: {rule}", partition_id=put.partition_id)


def _digests_by_field(put: PutSamples, digests: bytes) -> dict[str, bytes]:
    """The digests of each column that is put once. ValueError if there are too few or too many."""
    names, size = [c.name for c in put.columns if c.name in put.once], DIGEST_SIZE * len(put.sample_ids)
    if len(digests) != size * len(names):
        raise ValueError(f"a put once of {size * len(names)} bytes of digests was finished with {len(digests)}")
    return {name: digests[size * i : size * (i + 1)] for i, name in enumerate(names)}


def _columns(specs: Sequence[ColumnSpec], n_rows: int, limits: Limits) -> Columns:
    """The checked columns of a write over n_rows rows. Refusal for a duplicate field."""
    check_names("field name", [spec.name for spec in specs], limits)
    return make_columns(specs, n_rows, limits)

"""A data plane beside its model: every call goes to both, and what the core answers must be what the model says.

Where promises leave the core a choice (whether a fragmented arena has room) the model takes the core's answer if it is
one of those allowed; everything else must be exactly as predicted, the order of grants and admissions included.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from tests.core.arena_model import ArenaModel, cut
from tests.core.partition_model import Claim, PartitionModel, Read, Value, Write, check_grant, entry_bytes, row_entries
from tests.core.replayed import RecordedPlane

from dataplane_server.core.calls import (
    AbandonClaim,
    AbortWrite,
    Admitted,
    BeginRead,
    Call,
    ClaimSamples,
    ClearResult,
    ClearSamples,
    CommitClaim,
    CommitResult,
    Definition,
    Drain,
    DropPartition,
    DropResult,
    Effect,
    EndRead,
    Failed,
    FinishWrite,
    GiveUpClaim,
    GiveUpWrite,
    Grant,
    Granted,
    PartitionInfo,
    PutResult,
    PutSamples,
    ReadPlan,
    RegisterPartition,
    ReleaseClaim,
    ReleaseResult,
    Reservation,
    Totals,
    Waiting,
)
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal


@dataclass(eq=False)
class Answer:
    call: Call[object]
    text: str
    at: float


class ModelledPlane:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.plane = RecordedPlane(limits)
        self.arena = ArenaModel(limits.memory_bytes)
        self.partitions: dict[str, PartitionModel] = {}
        self.writes: dict[int, Write] = {}
        self.queue: list[int] = []  # tickets of writes that wait for room, those in the name of claims first
        self.waiting: dict[int, ClaimSamples] = {}  # by ticket, longest waiting first
        self.claims: dict[str, Claim] = {}
        self.claim_ids: list[str] = []  # ever handed out
        self.fenced: set[str] = set()  # ended by the server
        self.reads: dict[int, Read] = {}
        self.now = 0.0
        self.draining = False
        self._requests = 0
        self._answers: dict[str, Answer] = {}
        self._effects: dict[type, deque[Effect]] = {Admitted: deque(), Granted: deque(), Failed: deque()}
        self._random = random.Random(0)

    # -- the steps of every call ---------------------------------------------------------------------------------------

    def request_id(self) -> str:
        self._requests += 1
        return f"r{self._requests}"

    def _call(self, call: Call[object]) -> object:
        """The answer, or the refusal; effects go to one queue for each kind."""
        try:
            outcome = self.plane.apply(call, self.now)
        except Refusal as refusal:
            outcome = refusal
        for effect in self.plane.take_effects():
            self._effects[type(effect)].append(effect)
        return outcome

    def _refused(self, outcome: object, reasons: set[Reason]) -> bool:
        """Whether the call was refused; it must be exactly when there are reasons."""
        refused = isinstance(outcome, Refusal)
        assert refused == bool(reasons), (outcome, reasons)
        assert not isinstance(outcome, Refusal) or outcome.reason in reasons, (outcome, reasons)
        return refused

    def _remember(self, request_id: str, answer: object, call: Call[object]) -> None:
        self._answers[request_id] = Answer(call, repr(answer), self.now)

    def remembered(self) -> list[Answer]:
        return [answer for answer in self._answers.values() if self.now - answer.at <= self.limits.remember_s]

    def repeat(self, answer: Answer) -> None:
        assert repr(self._call(answer.call)) == answer.text

    def _expect_failed(self, ticket: int, reasons: set[Reason]) -> None:
        failed = self._effects[Failed].popleft()
        assert isinstance(failed, Failed)
        assert failed.ticket == ticket
        assert failed.refusal.reason in reasons

    def check(self) -> None:
        """Everything that can be asked is as the model says."""
        assert not any(self._effects.values()), "callers were told something that nobody expected"
        for partition_id, partition in self.partitions.items():
            assert self.plane.partition_info(partition_id) == self._info(partition_id)
            if tasks := partition.definition.tasks:
                assert self.plane.consumption(partition_id, tasks).consumed == partition.is_consumed
        counts = (len(self.partitions), self._rows(), len(self.claims), len(self.waiting), len(self.queue))
        assert self.plane.totals() == Totals(self.limits.memory_bytes, self.arena.used, *counts, 0, 0)
        for ticket, write in self.writes.items():
            assert self.plane.holds_reservation(ticket) == (write.runs is not None)
        for read in self.reads.values():
            assert self.arena.copy_out(read.runs) == read.data
        self.plane.check_invariants()

    def _info(self, partition_id: str) -> PartitionInfo:
        waiting = Counter(self.waiting[ticket].task for ticket in self._waiting_on(partition_id))
        return self.partitions[partition_id].info(waiting)

    def _rows(self) -> int:
        return sum(len(partition.rows) for partition in self.partitions.values())

    # -- partitions ----------------------------------------------------------------------------------------------------

    def register(self, definition: Definition) -> None:
        request_id, partition_id = self.request_id(), definition.partition_id
        call = RegisterPartition(request_id, definition)
        outcome = self._call(call)
        partition = self.partitions.get(partition_id)
        if self._refused(outcome, partition.refuses(definition) if partition else set()):
            return
        if partition is None:
            self.partitions[partition_id] = PartitionModel(definition)
            assert outcome == self._info(partition_id)
        else:
            partition.redefine(definition)
            self._end_claims_on(partition)
            for ticket in self._waiting_on(partition_id):
                if reasons := partition.why_not_claim(self.waiting[ticket]):
                    self._expect_failed(ticket, reasons)
                    del self.waiting[ticket]
            assert outcome == self._info(partition_id)
            self._expect_grants(partition_id)
        self._remember(request_id, outcome, call)

    def drop(self, partition_id: str) -> None:
        request_id = self.request_id()
        call = DropPartition(request_id, partition_id)
        outcome = self._call(call)
        partition = self.partitions.pop(partition_id, None)
        assert outcome == DropResult(len(partition.rows) if partition else 0)
        self._remember(request_id, outcome, call)
        if partition is not None:
            self.arena.free(partition.clear(list(partition.rows))[2])
            self._end_claims_on(partition)
            for ticket in self._waiting_on(partition_id):
                self._expect_failed(ticket, {Reason.PARTITION_NOT_FOUND})
                del self.waiting[ticket]
            for ticket in [t for t in self.queue if self.writes[t].partition_id == partition_id]:
                self._expect_failed(ticket, {Reason.PARTITION_NOT_FOUND})
                self._discard(ticket)
            self._expect_admissions()

    def _end_claims_on(self, partition: PartitionModel) -> None:
        self.fenced |= {claim_id for claim_id, claim in self.claims.items() if claim.partition is partition}
        self.claims = {claim_id: claim for claim_id, claim in self.claims.items() if claim.partition is not partition}

    def _waiting_on(self, partition_id: str) -> list[int]:
        return [ticket for ticket, request in self.waiting.items() if request.partition_id == partition_id]

    def clear(self, partition_id: str, sample_ids: Sequence[str] | None) -> None:
        request_id = self.request_id()
        call = ClearSamples(request_id, partition_id, sample_ids)
        outcome = self._call(call)
        partition = self.partitions.get(partition_id)
        if self._refused(outcome, set() if partition else {Reason.PARTITION_NOT_FOUND}) or partition is None:
            return
        count, size, freed = partition.clear(list(partition.rows) if sample_ids is None else sample_ids)
        assert outcome == ClearResult(count, size)
        self.arena.free(freed)
        self._remember(request_id, outcome, call)
        self._expect_admissions()

    # -- writes --------------------------------------------------------------------------------------------------------

    def begin(self, call: PutSamples | CommitClaim) -> int | None:
        """Begin a write that has columns or is a put, new or under way. The ticket of one that has its room."""
        outcome = self._call(call)
        for ticket in [t for t, other in self.writes.items() if other.call.request_id == call.request_id]:
            self._expect_failed(ticket, {Reason.SUPERSEDED})
            self._discard(ticket)
            self._expect_admissions()
        reasons, partition, ids = self._why_not(call)
        write = Write(call, partition.definition.partition_id if partition else "", ids, self._values(call, len(ids)))
        if self.arena.never_fits(write.sizes):
            reasons.add(Reason.PUT_TOO_LARGE)
        if reasons:
            assert self._refused(outcome, reasons)
            return None
        return self._admit(write, outcome)

    def commit_alone(self, claim_id: str) -> None:
        """Commit without columns."""
        commit = CommitClaim(self.request_id(), claim_id)
        outcome = self._call(commit)
        if not self._refused(outcome, self._why_not_open(claim_id)):
            assert outcome == CommitResult(self._consume(claim_id))
            self._remember(commit.request_id, outcome, commit)

    def finish(self, ticket: int) -> None:
        write = self.writes[ticket]
        reasons, partition, _ = self._why_not(write.call)
        outcome = self._call(FinishWrite(ticket))
        if self._refused(outcome, reasons) or partition is None:
            self._discard(ticket)
        else:
            del self.writes[ticket]
            before = partition.put_total
            self.arena.free(partition.store(write.call, write.sample_ids, write.values))
            if isinstance(write.call, PutSamples):
                assert outcome == PutResult(partition.put_total - before, sum(write.sizes))
            else:
                assert outcome == CommitResult(self._consume(write.call.claim_id))
            self._remember(write.call.request_id, outcome, write.call)
            self._expect_grants(partition.definition.partition_id)
        self._expect_admissions()

    def abort(self, ticket: int) -> None:
        self._call(AbortWrite(ticket))
        self._discard(ticket)
        self._expect_admissions()

    def give_up_write(self, ticket: int) -> None:
        refusal = self._call(GiveUpWrite(ticket))
        assert self._refused(refusal, {Reason.NO_SPACE})
        self._discard(ticket)
        self._expect_admissions()

    def admitted(self) -> list[int]:
        return [ticket for ticket, write in self.writes.items() if write.runs is not None]

    def _values(self, call: PutSamples | CommitClaim, n_rows: int) -> dict[str, list[Value]]:
        values: dict[str, list[Value]] = {}
        for spec in call.columns:
            entries = [row_entries(spec, row) for row in range(n_rows)]
            values[spec.name] = [Value(self._random.randbytes(n * entry_bytes(spec.shape)), n) for n in entries]
        return values

    def _why_not(self, call: PutSamples | CommitClaim) -> tuple[set[Reason], PartitionModel | None, Sequence[str]]:
        """Reasons to refuse a write, its partition and its rows."""
        partition, ids, reasons = self._put_rows(call) if isinstance(call, PutSamples) else self._commit_rows(call)
        if partition is not None and not reasons:
            reasons = partition.why_not_write(call, ids, self.limits.max_tags_per_row)
            if self._rows() + len(set(ids) - partition.rows.keys()) > self.limits.max_rows:
                reasons.add(Reason.LIMIT_REACHED)
        return reasons, partition, ids

    def _put_rows(self, put: PutSamples) -> tuple[PartitionModel | None, Sequence[str], set[Reason]]:
        partition = self.partitions.get(put.partition_id)
        return partition, put.sample_ids, set() if partition else {Reason.PARTITION_NOT_FOUND}

    def _commit_rows(self, commit: CommitClaim) -> tuple[PartitionModel | None, Sequence[str], set[Reason]]:
        claim = self.claims.get(commit.claim_id)
        if claim is None:
            return None, (), self._why_not_open(commit.claim_id)
        all_there = len(claim.left()) == len(claim.rows)
        ids = [row.sample_id for row in claim.rows]
        return claim.partition, ids, set() if all_there else {Reason.SAMPLE_NOT_FOUND}

    def _admit(self, write: Write, outcome: object) -> int | None:
        """A write has its room, or stands in line, or may not wait."""
        urgent = [ticket for ticket in self.queue if self.writes[ticket].in_the_name_of_a_claim]
        alike = urgent if write.in_the_name_of_a_claim else self.queue[len(urgent) :]
        ahead = urgent if write.in_the_name_of_a_claim else self.queue
        must_wait = bool(ahead) and sum(write.sizes) > 0
        if isinstance(outcome, Reservation):
            assert not must_wait, "a write overtook the queue"
            self.writes[outcome.ticket] = write
            self._reserve(write, outcome)
            return outcome.ticket
        assert must_wait or not self.arena.must_fit(write.sizes)
        if self.draining:
            assert self._refused(outcome, {Reason.DRAINING})
        elif len(alike) >= self.limits.max_waiting_puts:
            assert self._refused(outcome, {Reason.LIMIT_REACHED})
        else:
            assert isinstance(outcome, Waiting)
            self.writes[outcome.ticket] = write
            self.queue.insert(len(ahead), outcome.ticket)
        return None

    def _reserve(self, write: Write, reservation: Reservation) -> None:
        """Take the room and copy the bytes of the stream into it."""
        assert self.arena.may_fit(write.sizes)
        assert reservation.size_bytes == sum(write.sizes)
        self.arena.take(reservation.runs)
        values = [value for column in write.values.values() for value in column]
        self.arena.copy_in(reservation.runs, b"".join(value.data for value in values))
        for value, pieces in zip(values, cut(reservation.runs, [len(value.data) for value in values]), strict=True):
            value.pieces = pieces
        write.runs = reservation.runs

    def _expect_admissions(self) -> None:
        """Room may have become free: the queue is served from its head."""
        while self.queue:
            write = self.writes[self.queue[0]]
            if not self._effects[Admitted]:
                assert not self.arena.must_fit(write.sizes), "a write waits although there is room"
                return
            admitted = self._effects[Admitted].popleft()
            assert isinstance(admitted, Admitted)
            assert admitted.ticket == admitted.reservation.ticket == self.queue.pop(0)
            self._reserve(write, admitted.reservation)

    def _discard(self, ticket: int) -> None:
        write = self.writes.pop(ticket)
        self.queue = [other for other in self.queue if other != ticket]
        self.arena.free(write.runs or ())

    # -- reads ---------------------------------------------------------------------------------------------------------

    def begin_read(self, partition_id: str, sample_ids: Sequence[str], names: Sequence[str]) -> None:
        outcome = self._call(BeginRead(partition_id, sample_ids, names))
        partition = self.partitions.get(partition_id)
        reasons = partition.why_not_read(sample_ids, names) if partition else {Reason.PARTITION_NOT_FOUND}
        if self._refused(outcome, reasons) or partition is None:
            return
        assert isinstance(outcome, ReadPlan)
        rows = [partition.rows[sample_id] for sample_id in sample_ids]
        assert [column.name for column in outcome.columns] == names
        for column in outcome.columns:
            assert column.shape == partition.shapes[column.name]
            assert column.entries.tolist() == [row.values[column.name].entries for row in rows]
        assert outcome.sequence_lengths.tolist() == [row.length for row in rows]
        data = b"".join(row.values[name].data for name in names for row in rows)
        assert outcome.size_bytes == sum(run.size_bytes for run in outcome.runs) == len(data)
        for row in rows:
            row.pins += 1
        self.reads[outcome.ticket] = Read(rows, outcome.runs, data)

    def end_read(self, ticket: int) -> None:
        self._call(EndRead(ticket))
        for row in self.reads.pop(ticket).rows:
            row.pins -= 1
            if row.pins == 0:
                self.arena.free(row.owed)
                row.owed = []
        self._expect_admissions()

    # -- claims --------------------------------------------------------------------------------------------------------

    def claim(self, request: ClaimSamples) -> None:
        """A claim, new or waiting already."""
        outcome = self._call(request)
        for ticket in [t for t, other in self.waiting.items() if other.request_id == request.request_id]:
            self._expect_failed(ticket, {Reason.SUPERSEDED})
            self._end_wait(ticket)
        partition = self.partitions.get(request.partition_id)
        reasons = partition.why_not_claim(request) if partition else {Reason.PARTITION_NOT_FOUND}
        if reasons or partition is None:
            assert self._refused(outcome, reasons)
            return
        in_line = any(_view_of(other) == _view_of(request) for other in self.waiting.values())
        if len(partition.view(request)) >= request.min_size and not in_line:
            assert isinstance(outcome, Grant)
            self._hand_out(request, outcome)
        elif self.draining:
            assert self._refused(outcome, {Reason.DRAINING})
        elif len(self.waiting) >= self.limits.max_waiting_claims:
            assert self._refused(outcome, {Reason.LIMIT_REACHED})
        else:
            assert isinstance(outcome, Waiting)
            self.waiting[outcome.ticket] = request

    def give_up_claim(self, ticket: int) -> None:
        refusal = self._call(GiveUpClaim(ticket))
        assert self._refused(refusal, {Reason.CLAIM_TIMEOUT})
        self._end_wait(ticket)

    def abandon_claim(self, ticket: int) -> None:
        self._call(AbandonClaim(ticket))
        self._end_wait(ticket)

    def release(self, claim_id: str) -> None:
        request_id = self.request_id()
        outcome = self._call(ReleaseClaim(request_id, claim_id))
        reasons = self._why_not_open(claim_id)
        claim = self.claims.pop(claim_id, None)
        if self._refused(outcome, reasons) or claim is None:
            return
        assert outcome == ReleaseResult(claim.partition.give_back(claim))
        self._remember(request_id, outcome, ReleaseClaim(request_id, claim_id))
        self._expect_grants(claim.partition.definition.partition_id)

    def _why_not_open(self, claim_id: str) -> set[Reason]:
        if claim_id in self.claims:
            return set()
        return {Reason.CLAIM_FENCED if claim_id in self.fenced else Reason.CLAIM_NOT_FOUND}

    def _hand_out(self, request: ClaimSamples, grant: Grant) -> None:
        partition = self.partitions[request.partition_id]
        rows = partition.take(request)
        check_grant(grant, rows)
        assert bool(grant.claim_id) != request.consume
        if grant.claim_id:
            assert grant.claim_id not in self.claim_ids
            self.claim_ids.append(grant.claim_id)
            self.claims[grant.claim_id] = Claim(partition, request.task, rows)
        self._remember(request.request_id, grant, request)

    def _consume(self, claim_id: str) -> int:
        claim = self.claims.pop(claim_id)
        return claim.partition.consume(claim)

    def _end_wait(self, ticket: int) -> None:
        self._expect_grants(self.waiting.pop(ticket).partition_id)

    def _expect_grants(self, partition_id: str) -> None:
        """Rows may have become ready: of the claims at the head of their view, the longest waiting is served first."""
        for task in self.partitions[partition_id].definition.tasks:
            while (ticket := self._first_served(partition_id, task)) is not None:
                granted = self._effects[Granted].popleft()
                assert isinstance(granted, Granted)
                assert granted.ticket == ticket
                self._hand_out(self.waiting.pop(ticket), granted.grant)

    def _first_served(self, partition_id: str, task: str) -> int | None:
        passed = set()
        for ticket, request in self.waiting.items():
            view = _view_of(request)
            if view[:2] == (partition_id, task) and view not in passed:
                if len(self.partitions[partition_id].view(request)) >= request.min_size:
                    return ticket
                passed.add(view)
        return None

    # -- the end -------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        self._call(Drain())
        self.draining = True
        for ticket in self.waiting:
            self._expect_failed(ticket, {Reason.DRAINING})
        self.waiting.clear()
        for ticket in list(self.queue):
            self._expect_failed(ticket, {Reason.DRAINING})
            self._discard(ticket)


def _view_of(request: ClaimSamples) -> tuple[str, str, frozenset[str]]:
    return request.partition_id, request.task, frozenset(request.required_fields)

"""A data plane beside its model: every call goes to both, and the plane's answer must be the model's.

What only the plane can know (ids, tickets, generations) is told to the model as it comes out, after the laws that hold
for it were checked: ids are new, generations grow. A request that was answered before must be answered so again, word
for word, and change nothing: that is the first thing that `send` looks at, for every request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from tests.core.machine.draws import Draw
from tests.core.machine.entrances import Entrant
from tests.core.machine.facts import Effects
from tests.core.machine.history import History
from tests.core.machine.model import Model
from tests.core.machine.partition import PartitionModel
from tests.core.machine.refusals import No
from tests.core.machine.things import Answer, Group, Handed, Read, Row, Session, Wish, Write
from tests.core.replayed import RecordedPlane

from dataplane_server.core.calls.answers import (
    Admitted,
    Answered,
    Drawn,
    Failed,
    Grant,
    Granted,
    PutResult,
    ReadPlan,
    Reservation,
    Reserved,
    ResidentSample,
    SessionExpired,
    SessionInfo,
    Waiting,
)
from dataplane_server.core.calls.life_calls import LetGo, Recover
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import (
    AbandonClaim,
    AbandonRequest,
    AbortGroup,
    AbortWrite,
    AdoptClaim,
    Advance,
    BeginRead,
    Call,
    ClaimSamples,
    ClaimShard,
    ClearSamples,
    ClosePartition,
    CloseSession,
    CommitClaim,
    Drain,
    DrawSamples,
    DropPartition,
    EndRead,
    ExtendPartition,
    FinishGroup,
    FinishWrite,
    GiveUpClaim,
    GiveUpWrite,
    Heartbeat,
    OpenSession,
    PutSamples,
    RegisterPartition,
    ReleaseClaim,
    RepeatableCall,
    ReserveGroup,
    ResetTask,
    SetPolicies,
    SetWeightVersion,
)
from dataplane_server.core.rows.shared_payloads import DIGEST_SIZE


class CheckedPlane:
    steps: ClassVar[int] = 0
    """Of all planes of this process: how often everything was compared."""

    def __init__(self, limits: Limits) -> None:
        self.plane = RecordedPlane(limits)
        self.model = Model(limits)
        self.history = History()
        self.sent: list[RepeatableCall[Any]] = []
        self.sessions: list[str] = []  # ever opened
        self.now = 0.0
        self.whole = True  # whether `check` asks for everything; calls are always compared
        self._newest = 0  # generation
        self._told: dict[type, Callable[..., object]] = {
            RegisterPartition: self.model.register,
            ExtendPartition: self.model.extend,
            ClosePartition: self.model.close,
            DropPartition: self.model.drop,
            SetWeightVersion: self.model.set_weight_version,
            SetPolicies: self.model.set_policies,
            ClearSamples: self.model.clear,
            PutSamples: self.model.begin_put,
            CommitClaim: self.model.begin_commit,
            ClaimSamples: self.model.claim,
            ClaimShard: self.model.steps.claim,
            DrawSamples: self.model.draw,
            ReleaseClaim: self.model.release,
            AbandonRequest: self.model.abandon,
            AdoptClaim: self.model.adopt,
            ResetTask: self.model.reset,
            ReserveGroup: self.model.reserve,
            FinishGroup: self.model.finish,
            AbortGroup: self.model.abort,
        }

    # -- requests ------------------------------------------------------------------------------------------------------

    def send(self, request: RepeatableCall[Any]) -> object:
        """Send a request, for the first time or again. What the plane said."""
        self.sent.append(request)
        verb = verb_of(request)
        outcome = self._real(request)
        self.model.was_refused = isinstance(outcome, Refusal)
        try:
            before = self.model.recall(request.request_id, verb, asked_by(request))
            if before is not None:
                assert before.told == (text_of(outcome) if not isinstance(outcome, Refusal) else outcome.reason.name)
                self._check_effects()
                return outcome
            self._note_reset(request)
            expected = self._told[type(request)](request)
        except No as no:
            self._check_refused(outcome, no)
            return outcome
        if isinstance(expected, Write) and isinstance(outcome, Waiting) and outcome.ticket in self.model.admitted:
            expected.ticket = outcome.ticket  # rows were evicted for it, so it and those before it have space
            self.model.writes.append(expected)
            self._check_effects()
        elif isinstance(expected, Write):
            self._check_effects(in_turn=True)  # a write that was superseded has made way for others
            self._admit(expected, outcome)
            self._check_queue()
        else:
            self._check_answer(request, outcome, expected)
        return outcome

    def _note_reset(self, request: RepeatableCall[Any]) -> None:
        if isinstance(request, ResetTask):
            partition = self.model.partitions.get(request.partition_id)
            rows = [] if partition is None else partition.rows
            ids = request.sample_ids
            self.history.reset([row for row in rows if ids is None or row.sample_id in ids], [request.task])
        elif isinstance(request, RegisterPartition) and request.replace:
            partition = self.model.partitions.get(request.definition.partition_id)
            if partition is not None:
                self.history.reset(partition.rows, partition.ledgers)

    def _check_refused(self, outcome: object, no: No) -> None:
        assert isinstance(outcome, Refusal), (outcome, no.reasons)
        assert outcome.reason in no.reasons, (outcome, outcome.reason, no.reasons)
        self._check_effects()

    def _check_answer(self, request: RepeatableCall[Any], outcome: object, expected: object) -> None:
        """An answer that was not given before; it is remembered, if it is one for good."""
        assert not isinstance(outcome, Refusal), (outcome.reason, outcome.message)
        handed = expected if isinstance(expected, Handed) else None
        if isinstance(expected, Entrant):
            assert isinstance(outcome, Waiting)
            expected.number = outcome.ticket
            self.model.wait_at_entrance(expected)
        elif isinstance(outcome, Waiting):
            assert isinstance(request, (ClaimSamples, ClaimShard))
            assert expected is None
            self.model.wait(request, outcome.ticket)
        elif handed is not None:
            assert isinstance(outcome, Grant)
        elif isinstance(expected, Group):
            assert isinstance(outcome, Reserved)
            self._bind_group(expected, outcome)
        elif isinstance(expected, Draw):
            assert isinstance(outcome, Drawn)
            expected.check(outcome)
        else:
            assert outcome == expected, (outcome, expected)
        self._check_effects()
        if isinstance(outcome, Grant) and isinstance(request, (ClaimSamples, ClaimShard)) and handed is not None:
            self._bind_claim(request, handed, outcome)
        if not isinstance(outcome, Waiting):
            self._remember(request, outcome, handed)

    def _admit(self, write: Write, outcome: object) -> None:
        """A write has its space, or is queued, or may not wait."""
        if write.at_entrance:
            assert isinstance(outcome, Waiting), outcome
            write.ticket = outcome.ticket
        elif isinstance(outcome, Reservation):
            assert not self.model.must_wait(write), "a write overtook the queue"
            self.model.give_space(write, outcome)
        else:
            assert self.model.must_wait(write) or not self.model.arena.must_fit(write.sizes)
            if reasons := self.model.why_not_at_once(write):
                self.model.forget_entrant(write)
                self._check_refused(outcome, No(*reasons))
                return
            assert isinstance(outcome, Waiting), outcome
            write.ticket = outcome.ticket
        self.model.writes.append(write)

    def _remember(self, request: RepeatableCall[Any], outcome: object, handed: Handed | None = None) -> None:
        verb = verb_of(request)
        self.model.answers[request.request_id] = Answer(verb, text_of(outcome), self.now, handed, asked_by(request))

    def _bind_claim(self, wish: Wish, handed: Handed, grant: Grant) -> None:
        """What a caller is told of its rows is as the model says; a claim has an id of its own."""
        claim = handed.claim
        generations = np.array([row.generation for row in claim.rows], np.int64)
        told = replace(handed.grant, claim_id=grant.claim_id, generations=generations)
        told = replace(told, committed=claim.shard is not None and claim.ended == "committed")
        assert repr(grant) == repr(told)
        assert bool(grant.claim_id) != handed.consumed
        if not claim.told:
            assert grant.claim_id not in [other.claim_id for other in self.model.claims if other.told]
            claim.claim_id, claim.told = grant.claim_id, True
            self.history.granted(claim, handed.ledger, whole=wish.whole_groups)
        assert grant.claim_id == claim.claim_id

    def _bind_group(self, group: Group, reserved: Reserved) -> None:
        assert reserved.reservation_id not in [other.reservation_id for other in self.model.groups]
        group.reservation_id = reserved.reservation_id
        self._bind_generations(group.rows, reserved.generations.tolist())

    def _bind_generations(self, rows: Sequence[Row | None], generations: list[int]) -> None:
        """A row keeps its generation; that of a new row is greater than all before."""
        for row, generation in zip(rows, generations, strict=True):
            if row is not None and row.generation:
                assert row.generation == generation
            elif row is not None:
                assert generation > self._newest
                row.generation = generation
            self._newest = max(self._newest, generation)

    # -- writes whose bytes come later ---------------------------------------------------------------------------------

    def finish(self, write: Write) -> None:
        """The last byte of a write has come."""
        columns = [column for name, column in write.values.items() if name in getattr(write.call, "once", ())]
        digests = [blake2b(value.data, digest_size=DIGEST_SIZE).digest() for column in columns for value in column]
        outcome = self._real(FinishWrite(write.ticket, digests=b"".join(digests)))
        call, model = write.call, self.model
        try:
            expected = (
                model.finish_put(write, call) if isinstance(call, PutSamples) else model.finish_commit(write, call)
            )
        except No as no:
            model.discard(write)
            self._check_refused(outcome, no)
            return
        model.writes.remove(write)
        assert outcome == expected, (outcome, expected)
        if isinstance(call, PutSamples):
            assert isinstance(outcome, PutResult)
            partition = self.model.partitions[call.partition_id]
            if not call.shared:
                rows = list(map(partition.find, call.sample_ids))  # None: it was too stale, and dropped at once
                self._bind_generations(rows, outcome.generations.tolist())
            group = next((one for one in model.groups if one.reservation_id == call.reservation_id != ""), None)
            assert bool(outcome.abort_hint) == (group is not None and partition.is_hinted(group))
        self._check_effects()
        self._remember(call, outcome)

    def abort_write(self, write: Write) -> None:
        self._real(AbortWrite(write.ticket))
        self.model.discard(write)
        self._check_effects()

    def give_up_write(self, write: Write) -> None:
        refusal = self._real(GiveUpWrite(write.ticket))
        assert isinstance(refusal, Refusal)
        assert refusal.reason is (Reason.PARTITION_FULL if write.at_entrance else Reason.NO_SPACE)
        self.model.discard(write)
        self._check_effects()

    # -- sessions and time ---------------------------------------------------------------------------------------------

    def open_session(self, session_id: str, grace_s: float) -> None:
        outcome = self._real(OpenSession(session_id, "client", grace_s))
        if session_id:
            lives = self.model.heard(session_id, self.now)
            assert isinstance(outcome, Refusal) != lives
            assert not isinstance(outcome, Refusal) or outcome.reason is Reason.SESSION_EXPIRED
            return
        assert isinstance(outcome, SessionInfo)
        assert outcome.grace_s == grace_s
        assert outcome.session_id not in self.sessions
        self.sessions.append(outcome.session_id)
        self.model.sessions.append(Session(outcome.session_id, grace_s, self.now + grace_s))

    def heartbeat(self, session_id: str, sent_s_ago: float = 0.0) -> None:
        at = max(0.0, self.now - sent_s_ago)
        assert self._real(Heartbeat(session_id), at) == self.model.heard(session_id, at)

    def close_session(self, session_id: str) -> None:
        self._real(CloseSession(session_id))
        self.model.close_session(session_id)
        self._check_effects()

    def pass_time(self, seconds: float) -> None:
        """Time passes, and the server has not noticed yet."""
        self.now += seconds
        self.model.now = self.now

    def advance(self, stalled_s: float = 0.0) -> None:
        self._real(Advance(stalled_s))
        self.model.advance(self.now, stalled_s)
        self._check_effects()

    # -- waiting callers -----------------------------------------------------------------------------------------------

    def give_up_claim(self, ticket: int) -> None:
        refusal = self._real(GiveUpClaim(ticket))
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.CLAIM_TIMEOUT
        self.model.leave_line([ticket])
        self._check_effects()

    def abandon_claim(self, ticket: int) -> None:
        self._real(AbandonClaim(ticket))
        self.model.leave_line([ticket])
        self._check_effects()

    def leave_entrance(self, ticket: int, *, late: bool) -> None:
        """A group or a draw does not wait any longer."""
        refusal = self._real(GiveUpClaim(ticket) if late else AbandonClaim(ticket))
        assert not late or (
            isinstance(refusal, Refusal) and refusal.reason in (Reason.PARTITION_FULL, Reason.TOO_FEW_ROWS)
        )
        self.model.leave_entrance(ticket)
        self._check_effects()

    # -- reads ---------------------------------------------------------------------------------------------------------

    def begin_read(self, call: BeginRead) -> ReadPlan | None:
        """Begin a read, which stays open; None if it is refused."""
        outcome = self._real(call)
        if reasons := self.model.why_not_read(call):
            self._check_refused(outcome, No(*reasons))
            return None
        assert isinstance(outcome, ReadPlan), outcome
        partition = self.model.partitions[call.partition_id]
        rows = partition.found(call.sample_ids)
        assert [column.name for column in outcome.columns] == list(call.fields)
        data = b""
        for column in outcome.columns:
            assert column.shape == partition.shape_of_read(column.name, call)
            cuts = [partition.cut(row.values[column.name], column.name, call, i) for i, row in enumerate(rows)]
            assert column.entries.tolist() == [entries for entries, _ in cuts]
            data += b"".join(part for _, part in cuts)
        assert outcome.sequence_lengths.tolist() == [row.length for row in rows]
        assert outcome.size_bytes == sum(run.size_bytes for run in outcome.runs) == len(data)
        self.model.reads[outcome.ticket] = Read(rows, outcome.runs, data)
        self.model.reads[outcome.ticket].begin()
        return outcome

    def end_read(self, ticket: int) -> None:
        self._real(EndRead(ticket))
        self.model.end_read(ticket)
        self._check_effects()

    # -- the end -------------------------------------------------------------------------------------------------------

    def recover(self, *, held: bool) -> None:
        self._real(Recover(held))
        self.model.recover(held)
        self._check_effects()

    def let_go(self) -> None:
        self._real(LetGo())
        self.model.let_go()
        self._check_effects()

    def drain(self) -> None:
        self._real(Drain())
        self.model.drain()
        self._check_effects()

    def release_all(self) -> None:
        """Read all values, and release everything: not one byte stays in use."""
        for partition_id, partition in self.model.partitions.items():
            for name in partition.definition.fields:
                if ids := [row.sample_id for row in partition.rows if name in row.values]:
                    assert self.begin_read(BeginRead(partition_id, ids, [name]))
        self.check()
        for partition_id in list(self.model.partitions):
            self.send(ClearSamples(f"clear {partition_id}", partition_id, None))
        for group in [group for group in self.model.groups if group.state == "reserved"]:
            self.send(AbortGroup(f"abort {group.reservation_id}", group.reservation_id))
        for ticket in list(self.model.reads):
            self.end_read(ticket)
        self.let_go()
        while self.model.writes:  # one that ends lets others in, which may then be refused
            self.abort_write(self.model.writes[0])
        self.check()
        assert self.plane.totals().memory_used_bytes == 0

    # -- comparison ----------------------------------------------------------------------------------------------------

    def _real(self, call: Call[object], at: float | None = None) -> object:
        try:
            return self.plane.apply(call, self.now if at is None else at)
        except Refusal as refusal:
            return refusal
        finally:
            state, *_ = self.plane.parts
            self.model.admitted = {effect.ticket for effect in state.effects if isinstance(effect, Admitted)}
            self.model.asks_first.clear()

    def _check_effects(self, *, in_turn: bool = False) -> None:
        """Callers that wait are told what the model says: failures in its order, grants in that of each task."""
        self.model.follow_up()
        effects = self.plane.take_effects()
        expected, self.model.effects = self.model.effects, Effects()
        admitted = [effect for effect in effects if isinstance(effect, Admitted)]
        self._check_admissions(admitted)
        if not in_turn:  # or a write has yet to get its space, which has evicted rows for it
            self._check_queue()
        failed = [(effect.ticket, effect.refusal.reason) for effect in effects if isinstance(effect, Failed)]
        self._check_ended([ticket for ticket, reason in failed if reason is Reason.END_OF_DATA], expected.ended)
        failed = [(ticket, reason) for ticket, reason in failed if reason is not Reason.END_OF_DATA]
        assert [ticket for ticket, _ in failed] == [ticket for ticket, _ in expected.failed]
        for (_, reason), (_, reasons) in zip(failed, expected.failed, strict=True):
            assert reason in reasons
        granted = [effect for effect in effects if isinstance(effect, Granted)]
        expected_of = {ticket: (wish, handed) for ticket, wish, handed in expected.granted}
        assert {effect.ticket for effect in granted} == expected_of.keys(), (effects, self.model.waiting)
        served = sorted(granted, key=lambda effect: task_of(expected_of[effect.ticket][0]))
        of_model = sorted(expected.granted, key=lambda one: task_of(one[1]))
        assert [effect.ticket for effect in served] == [ticket for ticket, _, _ in of_model]
        for effect in granted:
            wish, handed = expected_of[effect.ticket]
            self._bind_claim(wish, handed, effect.grant)
            self._remember(wish, effect.grant, handed)
        self._check_answered([effect for effect in effects if isinstance(effect, Answered)], expected.answered)
        died = [effect for effect in effects if isinstance(effect, SessionExpired)]
        assert [(one.session_id, one.claims, one.rows, one.groups) for one in died] == expected.died
        told = len(failed) + len(expected.ended) + len(granted) + len(died) + len(admitted) + len(expected.answered)
        assert len(effects) == told

    def _check_answered(self, answered: list[Answered], expected: list[tuple[int, object, object]]) -> None:
        """Groups and draws that waited, in the order of the model."""
        assert [effect.ticket for effect in answered] == [ticket for ticket, _, _ in expected]
        for effect, (_, call, what) in zip(answered, expected, strict=True):
            if isinstance(what, Group):
                assert isinstance(effect.answer, Reserved)
                self._bind_group(what, effect.answer)
            else:
                assert isinstance(what, Draw)
                assert isinstance(effect.answer, Drawn)
                what.check(effect.answer)
            self._remember(call, effect.answer)  # type: ignore[arg-type]

    def _check_ended(self, ended: list[int], expected: list[tuple[int, Wish]]) -> None:
        """Claims that no rows will come for are told so, for each task in the order in which they came."""
        task_of_ticket = {ticket: task_of(wish) for ticket, wish in expected}
        assert sorted(ended) == sorted(task_of_ticket)
        of_model = sorted(task_of_ticket, key=lambda ticket: task_of_ticket[ticket])
        assert sorted(ended, key=lambda ticket: task_of_ticket[ticket]) == of_model

    def _check_admissions(self, admitted: list[Admitted]) -> None:
        """The queue for space is served in its order, but for writes that may pass. Writes without values need none."""
        for effect in admitted:
            (write,) = [write for write in self.model.queue() if write.ticket == effect.ticket]
            assert effect.ticket == effect.reservation.ticket
            assert not self.model.must_wait(write), "a write passed others that it may not pass"
            self.model.give_space(write, effect.reservation)

    def _check_queue(self) -> None:
        for write in self.model.queue():
            may_go = not self.model.must_wait(write) and self.model.arena.must_fit(write.sizes)
            assert not may_go, "a write waits although there is space"

    def check(self) -> None:
        """Everything that can be asked is as the model says, if all of it is asked for now."""
        CheckedPlane.steps += 1
        self.history.note_ends()
        if not self.whole:
            return
        self.plane.check_invariants()
        infos = {name: self.plane.partition_info(name, self.now) for name in self.plane.partitions}
        assert infos.keys() == self.model.partitions.keys()
        for partition_id, partition in self.model.partitions.items():
            told = infos[partition_id]
            assert told == partition.info(self.model.waiting_by_task(partition_id))
            for info in told.tasks:
                self.history.check_told(partition.ledgers[info.task], info)
                assert self.plane.dead_letters(partition_id, info.task) == partition.dead_letters(info.task)
            for row in partition.rows:
                self._check_sample(partition, row)
            if tasks := partition.definition.tasks:
                assert self.plane.consumption(partition_id, tasks).consumed == partition.is_consumed
        for read in self.model.reads.values():
            assert self.model.arena.copy_out(read.runs) == read.data
        for write in self.model.writes:
            assert self.plane.holds_reservation(write.ticket) == (write.runs is not None)
        self._check_totals()
        self._check_next_due()

    def _check_sample(self, partition: PartitionModel, row: Row) -> None:
        resident = self.plane.sample(row.partition_id, row.sample_id).resident
        assert resident == ResidentSample(
            row.generation,
            row.length,
            tuple(name for name in partition.definition.fields if name in row.values),
            row.tags,
            "" if row.group is None else row.group.group_id,
            row.hidden,
            partition.sample_tasks(row, self.model.claim_ids(row)),
        )

    def _check_totals(self) -> None:
        model, totals = self.model, self.plane.totals()
        assert totals.memory_used_bytes == model.arena.used
        assert totals.rows == model.rows
        assert totals.open_claims == len(model.open_claims())
        assert totals.waiting_claims == len(model.callers())
        assert (totals.waiting_puts, totals.waiting_for_room) == (len(model.queue()), len(model.entrants))
        explained = self.plane.explain_waits("", "", self.now).waits
        assert sum(wait.calls for wait in explained) == len([*model.callers(), *model.queue(), *model.entrants])
        assert totals.draining == model.draining
        assert totals.sessions == len(model.sessions)
        assert totals.open_groups == sum(group.state == "reserved" for group in model.groups)

    def _check_next_due(self) -> None:
        """The plane asks to be called before anything is due, and does not when nothing ever will be."""
        dues = [session.deadline for session in self.model.sessions]
        dues += [held.until for partition in self.model.partitions.values() for held in partition.held if held.rows]
        dues += [group.deadline for group in self.model.groups if group.state == "reserved"]
        due = self.plane.next_due
        if min(dues, default=math.inf) < math.inf:
            assert due is not None
            assert due <= min(dues)


def text_of(answer: object) -> str:
    """The same for equal answers: `repr` tells the elements of a set in any order."""
    sets = re.compile(r"frozenset\(\{(.*?)\}\)")
    return sets.sub(lambda found: str(sorted(found[1].split(", "))), repr(answer))


def task_of(wish: Wish) -> tuple[str, str]:
    return wish.partition_id, wish.task


def asked_by(call: RepeatableCall[Any]) -> str:
    """The same for a call and its repetition."""
    may_differ = {"request_id", "session_id", "caller", "node"}
    if isinstance(call, ReserveGroup):
        may_differ.add("sample_ids")
    names = [field.name for field in fields(call) if field.name not in may_differ]  # type: ignore[arg-type]
    return text_of({name: getattr(call, name) for name in names})


def verb_of(call: RepeatableCall[Any]) -> str:
    """Calls that may not share a request_id differ in it."""
    alike = {ClaimShard: ClaimSamples, AbandonRequest: ReleaseClaim}
    return alike.get(type(call), type(call)).__name__

"""A data plane beside its model: every call goes to both, and the plane's answer must be the model's.

What only the plane can know (ids, tickets, generations) is told to the model as it comes out, after the laws that hold
for it were checked: ids are new, generations grow. A request that was answered before must be answered so again, word
for word, and change nothing: that is the first thing that `send` looks at, for every request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from tests.core.claim_machine.facts import Effects
from tests.core.claim_machine.history import History
from tests.core.claim_machine.model import Model
from tests.core.claim_machine.partition import PartitionModel
from tests.core.claim_machine.refusals import No
from tests.core.claim_machine.things import Answer, Group, Handed, Row, Session, Wish, Write
from tests.core.replayed import RecordedPlane

from dataplane_server.core.calls import (
    AbandonClaim,
    AbandonRequest,
    AbortGroup,
    AbortWrite,
    AdoptClaim,
    Advance,
    BeginRead,
    ClaimSamples,
    ClaimShard,
    ClearSamples,
    CloseSession,
    CommitClaim,
    DropPartition,
    EndRead,
    Failed,
    FinishGroup,
    FinishWrite,
    GiveUpClaim,
    Grant,
    Granted,
    Heartbeat,
    OpenSession,
    PutResult,
    PutSamples,
    ReadPlan,
    RegisterPartition,
    ReleaseClaim,
    RepeatableCall,
    Reservation,
    Reserved,
    ReserveGroup,
    ResetTask,
    ResidentSample,
    SessionExpired,
    SessionInfo,
    Waiting,
)
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal


class CheckedPlane:
    steps: ClassVar[int] = 0
    """Of all planes of this process: how often everything was compared."""

    def __init__(self, limits: Limits) -> None:
        self.plane = RecordedPlane(limits)
        self.model = Model(limits)
        self.history = History()
        self.sent: list[RepeatableCall[Any]] = []
        self.now = 0.0
        self._newest = 0  # generation
        self._told: dict[type, Callable[..., object]] = {
            RegisterPartition: self.model.register,
            DropPartition: self.model.drop,
            ClearSamples: self.model.clear,
            PutSamples: self.model.begin_put,
            CommitClaim: self.model.begin_commit,
            ClaimSamples: self.model.claim,
            ClaimShard: self.model.steps.claim,
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
        outcome = self._real(lambda: self.plane.apply(request, self.now))
        try:
            before = self.model.recall(request.request_id, verb)
            if before is not None:
                assert before.told == (repr(outcome) if not isinstance(outcome, Refusal) else outcome.reason.name)
                self._check_effects()
                return outcome
            self._note_reset(request)
            expected = self._told[type(request)](request)
        except No as no:
            self._check_refused(outcome, no)
            return outcome
        self._check_answer(request, outcome, expected)
        return outcome

    def _note_reset(self, request: RepeatableCall[Any]) -> None:
        if isinstance(request, ResetTask):
            partition = self.model.partitions.get(request.partition_id)
            rows = [] if partition is None else partition.rows
            ids = request.sample_ids
            self.history.reset([row for row in rows if ids is None or row.sample_id in ids], [request.task])
        elif isinstance(request, RegisterPartition):
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
        if isinstance(outcome, Reservation):
            assert isinstance(request, (PutSamples, CommitClaim))
            assert expected is None
            self.model.writes.append(Write(request, outcome.ticket))
        elif isinstance(outcome, Waiting):
            assert isinstance(request, (ClaimSamples, ClaimShard))
            assert expected is None
            self.model.wait(request, outcome.ticket)
        elif handed is not None:
            assert isinstance(outcome, Grant)
        elif isinstance(expected, Group):
            assert isinstance(outcome, Reserved)
            self._bind_group(expected, outcome)
        else:
            assert outcome == expected, (outcome, expected)
        self._check_effects()
        if isinstance(outcome, Grant) and isinstance(request, (ClaimSamples, ClaimShard)) and handed is not None:
            self._bind_claim(request, handed, outcome)
        if not isinstance(outcome, (Reservation, Waiting)):
            self._remember(request, outcome, handed)

    def _remember(self, request: RepeatableCall[Any], outcome: object, handed: Handed | None = None) -> None:
        verb = verb_of(request)
        self.model.answers[request.request_id] = Answer(verb, repr(outcome), self.now, handed)

    def _bind_claim(self, wish: Wish, handed: Handed, grant: Grant) -> None:
        """What a caller is told of its rows is as the model says; a claim has an id of its own."""
        claim = handed.claim
        generations = np.array([row.generation for row in claim.rows], np.int64)
        assert repr(grant) == repr(replace(handed.grant, claim_id=grant.claim_id, generations=generations))
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

    def _bind_generations(self, rows: list[Row], generations: list[int]) -> None:
        """A row keeps its generation; that of a new row is greater than all before."""
        for row, generation in zip(rows, generations, strict=True):
            if not row.generation:
                assert generation > self._newest
                self._newest = row.generation = generation
            assert row.generation == generation

    # -- writes whose bytes come later ---------------------------------------------------------------------------------

    def finish(self, write: Write) -> None:
        """The last byte of a write has come."""
        self.model.writes.remove(write)
        outcome = self._real(lambda: self.plane.apply(FinishWrite(write.ticket), self.now))
        call = write.call
        try:
            expected = self.model.finish_put(call) if isinstance(call, PutSamples) else self.model.finish_commit(call)
        except No as no:
            self._check_refused(outcome, no)
            return
        assert outcome == expected, (outcome, expected)
        if isinstance(call, PutSamples):
            assert isinstance(outcome, PutResult)
            partition = self.model.partitions[call.partition_id]
            rows = partition.found(call.sample_ids)
            if not call.shared:
                self._bind_generations(rows, outcome.generations.tolist())
        self._check_effects()
        self._remember(call, outcome)

    def abort_write(self, write: Write) -> None:
        self.model.writes.remove(write)
        self._real(lambda: self.plane.apply(AbortWrite(write.ticket), self.now))
        self._check_effects()

    # -- sessions and time ---------------------------------------------------------------------------------------------

    def open_session(self, session_id: str, grace_s: float) -> None:
        outcome = self._real(lambda: self.plane.apply(OpenSession(session_id, "client", grace_s), self.now))
        if session_id:
            lives = self.model.heard(session_id)
            assert isinstance(outcome, Refusal) != lives
            assert not isinstance(outcome, Refusal) or outcome.reason is Reason.SESSION_EXPIRED
            return
        assert isinstance(outcome, SessionInfo)
        assert outcome.grace_s == grace_s
        assert outcome.session_id not in self.history.sessions
        self.history.sessions.append(outcome.session_id)
        self.model.sessions.append(Session(outcome.session_id, grace_s, self.now + grace_s))

    def heartbeat(self, session_id: str) -> None:
        assert self.plane.apply(Heartbeat(session_id), self.now) == self.model.heard(session_id)

    def close_session(self, session_id: str) -> None:
        self._real(lambda: self.plane.apply(CloseSession(session_id), self.now))
        self.model.close_session(session_id)
        self._check_effects()

    def pass_time(self, seconds: float) -> None:
        """Time passes, and the server has not noticed yet."""
        self.now += seconds
        self.model.now = self.now

    def advance(self, stalled_s: float = 0.0) -> None:
        self._real(lambda: self.plane.apply(Advance(stalled_s), self.now))
        self.model.advance(self.now, stalled_s)
        self._check_effects()

    # -- waiting callers -----------------------------------------------------------------------------------------------

    def give_up_claim(self, ticket: int) -> None:
        refusal = self._real(lambda: self.plane.apply(GiveUpClaim(ticket), self.now))
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.CLAIM_TIMEOUT
        self.model.leave_line([ticket])
        self._check_effects()

    def abandon_claim(self, ticket: int) -> None:
        self._real(lambda: self.plane.apply(AbandonClaim(ticket), self.now))
        self.model.leave_line([ticket])
        self._check_effects()

    # -- reads ---------------------------------------------------------------------------------------------------------

    def read(self, partition: PartitionModel, rows: list[Row], names: list[str]) -> None:
        """Read rows, by the generations that they had when somebody last looked."""
        ids, births = [row.sample_id for row in rows], np.array([row.generation for row in rows], np.int64)
        outcome = self._real(lambda: self.plane.apply(BeginRead(partition.partition_id, ids, names, births), self.now))
        reasons = set()
        for row in rows:
            there = partition.find(row.sample_id)
            if there is None:
                reasons.add(Reason.SAMPLE_NOT_FOUND)
            elif there is not row:
                reasons.add(Reason.ROW_REPLACED)
            elif not set(names) <= there.values.keys():
                reasons.add(Reason.FIELD_NOT_PRODUCED)
        if reasons:
            self._check_refused(outcome, No(*reasons))
            return
        assert isinstance(outcome, ReadPlan)
        for column in outcome.columns:
            assert column.entries.tolist() == [row.values[column.name].size for row in rows]
        self.plane.apply(EndRead(outcome.ticket), self.now)

    # -- comparison ----------------------------------------------------------------------------------------------------

    def _real(self, call: Callable[[], object]) -> object:
        try:
            return call()
        except Refusal as refusal:
            return refusal

    def _check_effects(self) -> None:
        """Callers that wait are told what the model says: failures in its order, grants in that of each task."""
        effects = self.plane.take_effects()
        expected, self.model.effects = self.model.effects, Effects()
        failed = [(effect.ticket, effect.refusal.reason) for effect in effects if isinstance(effect, Failed)]
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
        died = [effect for effect in effects if isinstance(effect, SessionExpired)]
        assert [(one.session_id, one.claims, one.rows, one.groups) for one in died] == expected.died
        assert len(effects) == len(failed) + len(granted) + len(died)

    def check(self) -> None:
        """Everything that can be asked is as the model says."""
        CheckedPlane.steps += 1
        self.history.note_ends()
        self.plane.check_invariants()
        assert [info.definition.partition_id for info in self.plane.partition_infos()] == sorted(self.model.partitions)
        for partition_id, partition in self.model.partitions.items():
            told = self.plane.partition_info(partition_id, self.now)
            assert told == partition.info(self.model.waiting_by_task(partition_id))
            for info in told.tasks:
                self.history.check_told(partition.ledgers[info.task], info)
                assert self.plane.dead_letters(partition_id, info.task) == partition.dead_letters(info.task)
            for row in partition.rows:
                self._check_sample(partition, row)
        self._check_totals()
        self._check_next_due()

    def _check_sample(self, partition: PartitionModel, row: Row) -> None:
        resident = self.plane.sample(row.partition_id, row.sample_id).resident
        assert resident == ResidentSample(
            row.generation,
            row.length,
            tuple(name for name in partition.definition.fields if name in row.values),
            {},
            "" if row.group is None else row.group.group_id,
            row.hidden,
            partition.sample_tasks(row, self.model.claim_ids(row)),
        )

    def _check_totals(self) -> None:
        model, totals = self.model, self.plane.totals()
        assert totals.memory_used_bytes == model.used_bytes
        assert totals.rows == sum(len(partition.rows) for partition in model.partitions.values())
        assert totals.open_claims == len(model.open_claims())
        assert totals.waiting_claims == len(model.callers())
        assert totals.sessions == len(model.sessions)
        assert totals.open_groups == sum(group.state == "reserved" for group in model.groups)

    def _check_next_due(self) -> None:
        """The plane asks to be called before anything is due, and does not when nothing ever will be."""
        dues = [session.deadline for session in self.model.sessions]
        dues += [held.until for partition in self.model.partitions.values() for held in partition.held if held.rows]
        due = self.plane.next_due
        if dues:
            assert due is not None
            assert due <= min(dues)


def task_of(wish: Wish) -> tuple[str, str]:
    return wish.partition_id, wish.task


def verb_of(call: RepeatableCall[Any]) -> str:
    """Calls that may not share a request_id differ in it."""
    alike = {ClaimShard: ClaimSamples, AbandonRequest: ReleaseClaim}
    return alike.get(type(call), type(call)).__name__

"""The one door: every change of the core is a call that passes `Turn.apply`.

A verb checks and changes. What surrounds a change is here, once for all verbs:

    recall      a repeated request gets the remembered answer, and nothing else happens; another call under the
                same request_id is refused
    supersede   a repeated request that is still under way is taken over: its earlier attempt fails
    change      the verb; it either raises Refusal and has changed nothing, or takes effect whole
    follow up   what follows from the change: rows that every task has consumed are cleared, where the partition asks
                for it, rows leave the tasks that do not want them, writes that wait are admitted into freed
                space, queued claims are served with rows that became ready, or end if too few are left, tasks note whom
                they wait for, cached figures are dropped, the history grows
    remember    the answer, for a repeated request

Verbs say what they changed in `state.changes`, which is empty between turns. Nothing here reads a clock or does I/O,
and chance comes from the seeds of calls: the same calls at the same times give the same answers, effects and state.

A call that its caller waits for ends in a later turn: the follow-up of that turn grants the claim or admits the write.
Expired sessions, ended delays and groups whose deadline has passed are followed up one by one, in the order of their
times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from dataplane_server.core.calls import life_calls, node_calls, requests
from dataplane_server.core.calls.answers import (
    Admitted,
    Answered,
    CloseResult,
    CommitResult,
    Drawn,
    Granted,
    GroupAborted,
    PutResult,
    ReadPlan,
    ReleaseResult,
    Reservation,
    Reserved,
    Stored,
    Waiting,
)
from dataplane_server.core.calls.refusal import Reason, Refusal, draining, server_ended, superseded
from dataplane_server.core.calls.requests import Call, ClaimShard, RepeatableCall
from dataplane_server.core.state.answers import Abandoned, Answers
from dataplane_server.core.state.state import State
from dataplane_server.core.stats.history import History
from dataplane_server.core.stats.waits import Waits, with_causes
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.verbs.verbs import Verbs

A = TypeVar("A")

_MERGED_AT_ONCE = 256
_UNFINISHED = (Reservation, Waiting)

Change = Callable[[Any, float], Any]
"""Carries out a call of one type."""


class _Verb(NamedTuple):
    """name: under which answers are remembered, with the call as {0}: callers choose the request_id of commits, perhaps
    twice the same one. supersede: fails an earlier attempt that is still under way, if any.
    """

    name: str
    change: Change
    supersede: Callable[[str], bool] | None = None


class Turn:
    """Applies calls, one after the other."""

    def __init__(self, state: State, verbs: Verbs, answers: Answers, history: History) -> None:
        self._state = state
        self._verbs = verbs
        self._answers = answers
        self._history = history
        self.waits = Waits(state, verbs, history)
        self._repeatable, self._others = self._tables(verbs)

    def _tables(self, v: Verbs) -> tuple[dict[type, _Verb], dict[type, Change]]:
        """The calls that may be repeated, and the others."""
        sessions = self._state.sessions
        repeatable: dict[type, _Verb] = {
            requests.RegisterPartition: _Verb("register", v.partitions.register),
            requests.ExtendPartition: _Verb("extend", v.partitions.extend),
            requests.SetWeightVersion: _Verb("set_version", lambda call, now: v.freshness.set_weight_version(call)),
            requests.SetPolicies: _Verb("set_policies", v.freshness.set_policies),
            requests.ClosePartition: _Verb("close", self._close),
            requests.DropPartition: _Verb("drop", lambda call, now: v.partitions.drop(call)),
            requests.ClearSamples: _Verb("clear", v.partitions.clear),
            requests.ResetTask: _Verb("reset", lambda call, now: v.partitions.reset(call)),
            requests.PutSamples: _Verb("put", v.writes.begin, v.writes.supersede),
            requests.CommitClaim: _Verb("the commit of claim {0.claim_id!r}", v.writes.begin, v.writes.supersede),
            requests.ClaimSamples: _Verb("claim", v.claims.claim, v.queue.supersede),
            requests.ClaimShard: _Verb("claim", v.steps.claim, v.queue.supersede),
            requests.DrawSamples: _Verb("draw", v.draws.draw, v.flow.supersede),
            requests.ReleaseClaim: _Verb("release", v.claims.release),
            requests.AbandonRequest: _Verb("release", self._abandon_request),
            requests.AdoptClaim: _Verb("adopt", lambda call, now: v.claims.adopt(call)),
            requests.ReserveGroup: _Verb("reserve", v.groups.reserve, v.flow.supersede),
            requests.FinishGroup: _Verb("finish_group", v.groups.finish),
            requests.AbortGroup: _Verb("abort_group", self._abort_group),
        }
        others: dict[type, Change] = {
            requests.FinishWrite: self._finish_write,
            requests.ShareReservation: lambda call, now: v.writes.share(call.ticket),
            requests.AbortWrite: lambda call, now: v.writes.abort(call.ticket),
            requests.GiveUpWrite: self._give_up_write,
            requests.BeginRead: self._begin_read,
            requests.EndRead: lambda call, now: v.reads.end(call.ticket),
            requests.GiveUpClaim: self._give_up_claim,
            requests.AbandonClaim: self._abandon_claim,
            requests.OpenSession: v.expiry.open,
            requests.Heartbeat: lambda call, now: sessions.heartbeat(call.session_id, now),
            requests.CloseSession: v.expiry.close,
            requests.Advance: self._advance,
            requests.MergeFreeRanges: lambda call, now: self._state.space.merge_pending(_MERGED_AT_ONCE),
            requests.Drain: self._drain,
            node_calls.AddNode: lambda call, now: v.nodes.add(call),
            node_calls.LoseNode: lambda call, now: v.nodes.lose(call),
            node_calls.SetMirror: lambda call, now: v.nodes.set_mirror(call),
            life_calls.Recover: self._recover,
            life_calls.LetGo: self._let_go,
            life_calls.BeginSnapshot: lambda call, now: v.reads.begin_snapshot(call.name),
            life_calls.EndSnapshot: lambda call, now: v.reads.end_snapshot(),
            life_calls.LeaveFor: lambda call, now: None,
            life_calls.Restored: self._restored,
            life_calls.Settle: lambda call, now: self._state.space.settle(call.releases),
        }
        return repeatable, others

    def apply(self, call: Call[A], now: float) -> A:
        """Carry out a call at a time (monotonic, s). Raises Refusal if it cannot be served."""
        self._state.version += 1
        if isinstance(call, RepeatableCall):
            return self._once(call, now)  # type: ignore[no-any-return]
        if isinstance(call, requests.StoreValues):
            return self._once(call.write, now, call)  # type: ignore[no-any-return]
        try:
            return self._others[type(call)](call, now)  # type: ignore[no-any-return]
        finally:  # also if it is refused: a refused write has ended, and its space is free
            self._follow_up(now)

    def _once(self, call: RepeatableCall[Any], now: float, at_hand: requests.StoreValues | None = None) -> Any:
        """Carry out a call, unless the same request was carried out before. at_hand: of a write whose values are."""
        (verb, change, supersede), request_id = self._repeatable[type(call)], call.request_id
        name = verb.format(call)
        remembered = self._answers.recall(request_id, name, now, call)
        if remembered is not None:
            if isinstance(remembered, Abandoned):
                raise superseded()
            return remembered
        if supersede is not None and supersede(request_id) and self._follow_up(now):
            at_hand = None  # rows may have gone for calls that waited, as in `Writes.store`
        try:
            answer = change(call, now) if at_hand is None else self._verbs.writes.store(at_hand, now)
        finally:
            self._follow_up(now)
        if not isinstance(answer, _UNFINISHED):
            self._answers.remember(request_id, name, answer.result if isinstance(answer, Stored) else answer, now, call)
        return answer

    # -- follow up -----------------------------------------------------------------------------------------------------

    def _follow_up(self, now: float) -> bool:
        """Do what follows from a change. Returns whether the history of any row has more since."""
        changes = self._state.changes
        if not changes and not self._state.space.freed:
            return False
        self._state.version += 1
        while self._settle(now):
            pass
        changes.tasks.clear()
        if changes.partitions:
            for partition in changes.partitions:
                partition.figures = None
            changes.partitions.clear()
        if not changes.facts:
            return False
        for fact in changes.facts:
            self._history.note(fact, now)
        changes.facts.clear()
        return True

    def _settle(self, now: float) -> bool:
        """Remove the rows that no task wants; then serve the calls that wait for room, for space and for rows. Returns
        whether more may follow: rows came back while claims were served, or consumed ones have made room.
        """
        changes, flow, effects = self._state.changes, self._verbs.flow, self._state.effects
        before = len(effects)
        self._remove_unwanted()
        if flow.waiting and changes:
            self._let_in(now)
        if self._state.space.freed or changes.writes_left:
            for reservation in self._verbs.admission.admit_waiting():
                effects.append(Admitted(reservation.ticket, reservation))
            self._state.space.freed = changes.writes_left = False
        for task in list(changes.tasks):
            if task.views.waiting():
                self._serve(task, now)
            task.observe(now)
            task.figures = None
        return any(task.suspects for task in changes.tasks) or bool(flow.waiting and len(effects) > before)

    def _remove_unwanted(self) -> None:
        """Clear rows that every task has consumed, and drop those that tasks do not want."""
        changes, freshness = self._state.changes, self._verbs.freshness
        while changes.consumed:
            self._verbs.partitions.clear_consumed(*changes.consumed.pop())
        for partition in list(changes.partitions):
            if partition.followed_version != partition.rows.weight_version:
                freshness.follow_version(partition)
        freshness.drop_unwanted()

    def _let_in(self, now: float) -> None:
        """Carry out the calls that waited for room in their partitions and have it, in order."""
        verbs = self._verbs
        for ticket, refusal in verbs.flow.hopeless():
            verbs.writes.fail(ticket, refusal)
        for ticket, call in verbs.flow.ready(now):
            if isinstance(call, requests.PutSamples):
                verbs.writes.let_in(ticket, now)
            else:
                self._answer_late(ticket, call, now)
            self._remove_unwanted()

    def _answer_late(self, ticket: int, call: requests.ReserveGroup | requests.DrawSamples, now: float) -> None:
        answer: Drawn | Reserved
        try:
            if isinstance(call, requests.DrawSamples):
                answer = self._verbs.draws.make(call, now)
            else:
                answer = self._verbs.groups.reserve_late(call, now)
        except Refusal as refusal:
            self._state.fail(ticket, refusal)
            return
        self._answers.remember(call.request_id, self._repeatable[type(call)].name, answer, now, call)
        self._state.effects.append(Answered(ticket, answer))

    def _serve(self, task: Task, now: float) -> int:
        """Grant ready rows to the claims that are queued for them, the longest queued first, and end those that no rows
        will come for: they may have kept others waiting. Returns how many calls ended.
        """
        ended = 0
        self._grant_ready(task, now)
        while calls := self._verbs.queue.end_hopeless(task):
            ended += calls
            self._grant_ready(task, now)
        return ended

    def _grant_ready(self, task: Task, now: float) -> None:
        verbs = self._verbs
        while (head := task.views.next_waiter()) is not None:
            queued, slots = verbs.queue.pop(*head, now)
            wanted = queued.wanted
            partition = self._state.partition(wanted.partition_id)
            if isinstance(wanted, ClaimShard):
                verbs.steps.begin(partition, wanted, slots, queued.callers.values())
            for ticket, call in queued.callers.items():
                if isinstance(call, ClaimShard):
                    grant = verbs.steps.grant(partition, call, now)
                else:
                    grant = verbs.claims.grant(partition, call, slots, now)
                self._answers.remember(call.request_id, "claim", grant, now, call)
                self._state.effects.append(Granted(ticket, grant))

    # -- calls that involve several verbs, or the answer of another call -----------------------------------------------

    def _begin_read(self, call: requests.BeginRead, now: float) -> ReadPlan:
        """Nothing else follows: the log of a data directory lacks most reads."""
        plan = self._verbs.reads.begin(call)
        self._state.partition(call.partition_id).figures = None
        return plan

    def _finish_write(self, call: requests.FinishWrite, now: float) -> PutResult | CommitResult:
        """The answer belongs to the request that began the write."""
        begun = self._verbs.writes.call_of(call.ticket)
        answer = self._verbs.writes.finish(call, now)
        if begun is not None:
            name = self._repeatable[type(begun)].name.format(begun)
            self._answers.remember(begun.request_id, name, answer, now, begun)
        return answer

    def _close(self, call: requests.ClosePartition, now: float) -> CloseResult:
        tasks = self._verbs.partitions.close(call)
        return CloseResult(sum(self._serve(task, now) for task in tasks))

    def _abandon_request(self, call: requests.AbandonRequest, now: float) -> ReleaseResult:
        granted = self._answers.recall(call.claim_request_id, "claim", now)  # refuses an id of another verb
        self._verbs.queue.supersede(call.claim_request_id)
        claim_id = getattr(granted, "claim_id", None)
        rows = self._verbs.claims.abandon(claim_id) if claim_id else 0
        if claim_id != "":  # rows that were consumed on delivery stay granted
            self._answers.remember(call.claim_request_id, "claim", Abandoned(), now)
        return ReleaseResult(rows)

    def _abort_group(self, call: requests.AbortGroup, now: float) -> GroupAborted:
        if not call.reserve_request_id:
            return self._verbs.groups.abort(call)
        self._verbs.groups.check_abandon(call)
        reserved = self._answers.recall(call.reserve_request_id, "reserve", now)  # refuses an id of another verb
        self._verbs.flow.supersede(call.reserve_request_id)
        rows = self._verbs.groups.abandon(reserved.reservation_id, call.reason) if isinstance(reserved, Reserved) else 0
        self._answers.remember(call.reserve_request_id, "reserve", Abandoned(), now)
        return GroupAborted(rows, True)

    def _give_up_claim(self, call: requests.GiveUpClaim, now: float) -> Refusal:
        refusal, wait = self.waits.claim_timeout(call.ticket, now), self.waits.of_write(call.ticket, now)
        self._verbs.queue.leave(call.ticket)
        refusal = refusal or self._verbs.flow.give_up(call.ticket)
        return with_causes(refusal or Refusal(Reason.CLAIM_TIMEOUT, "the call no longer waits"), wait)

    def _give_up_write(self, call: requests.GiveUpWrite, now: float) -> Refusal:
        wait = self.waits.of_write(call.ticket, now)
        return with_causes(self._verbs.writes.give_up(call.ticket, self._verbs.holders.summary()), wait)

    def _abandon_claim(self, call: requests.AbandonClaim, now: float) -> None:
        self._verbs.queue.leave(call.ticket)
        self._verbs.flow.leave(call.ticket)

    def _advance(self, call: requests.Advance, now: float) -> None:
        expiry = self._verbs.expiry
        for session in expiry.expired(now, call.stalled_s):
            expiry.expire(session, now)
            self._follow_up(now)
        for due in self._state.delays.due(now):
            expiry.end_delay(due)
            self._follow_up(now)
        for deadline in self._state.deadlines.due(now):
            self._verbs.groups.end_late(deadline)
            self._follow_up(now)
        if (again := self._verbs.flow.next_due) is not None and again <= now:
            self._state.changes.partitions.update(dict.fromkeys(self._verbs.flow.entrances))

    def _drain(self, call: requests.Drain, now: float) -> None:
        self._state.draining = True
        self._verbs.queue.fail_all(draining())
        self._verbs.writes.drain()

    def _recover(self, call: life_calls.Recover, now: float) -> None:
        self._state.draining = False
        self._end_calls(held=call.held)
        self._verbs.reads.recover(held=call.held)
        self._state.sessions.renew(now + call.reconnect_s)
        self._state.space.defer_frees = call.defer_frees
        if not call.defer_frees:
            self._state.space.settle(self._state.space.releases)

    def _restored(self, call: life_calls.Restored, now: float) -> None:
        self._end_calls(held=True)  # what is released below is for none that waited at that time
        self._verbs.groups.end_all("a snapshot was restored")
        for session in list(self._state.sessions):
            self._verbs.expiry.close(requests.CloseSession(session.session_id), now)
        self._state.incarnation = self._state.sessions.incarnation = call.incarnation
        self._state.generations.next = max(self._state.generations.next, call.first_generation)

    def _end_calls(self, *, held: bool) -> None:
        """End those that wait, and the writes under way, of a server that has ended."""
        self._verbs.queue.fail_all(server_ended())
        self._verbs.writes.recover(server_ended(), held=held)

    def _let_go(self, call: life_calls.LetGo, now: float) -> None:
        self._verbs.writes.let_go()
        self._verbs.reads.let_go()

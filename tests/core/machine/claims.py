"""Claims of the model: who gets which rows, who waits, and how each delivery ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from tests.core.machine.facts import Facts
from tests.core.machine.lines import Line, rows_of
from tests.core.machine.partition import PartitionModel
from tests.core.machine.refusals import No, refuse_if
from tests.core.machine.steps import HELD_FOR_STEP, Steps
from tests.core.machine.things import Answer, Claim, Handed, Row, Session, Wait, Wish

from dataplane_server.core.calls.answers import Grant, GroupPart, ReleaseResult, ResetResult
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.policies import ClaimOrder
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import AbandonRequest, AdoptClaim, ClaimSamples, ReleaseClaim, ResetTask


class Claims(Facts):
    """Methods named after requests answer them, or raise `No`."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.steps = Steps(self)

    def claim(self, wish: ClaimSamples) -> Handed | None:
        """None when the claim has to wait."""
        self.supersede_wait(wish.request_id)
        self.follow_up()
        sizes, unit = 1 <= wish.min_size <= wish.batch_size, wish.unit != "groups" or wish.whole_groups
        refuse_if((not sizes or not unit or not order_fits(wish.order, wish.order_tag), Reason.INVALID_REQUEST))
        partition = self.check_wish(wish)
        if not self.may_take(partition, wish):
            self.check_may_wait(partition, wish)
            return None
        handed = self._hand_out(partition, wish, partition.line(wish))
        self.serve(partition)  # those who wait for rows that were consumed now are told so
        return handed

    def check_wish(self, wish: Wish) -> PartitionModel:
        partition = self.partition(wish.partition_id)
        reasons = partition.why_not_claim(wish, self.limits.max_fields)
        try:
            self.session(wish.session_id)
        except No as no:
            reasons |= no.reasons
        if reasons:
            raise No(*reasons)
        return partition

    def may_take(self, partition: PartitionModel, wish: Wish) -> bool:
        if not set(wish.required_fields) <= set(partition.definition.fields):
            return False  # it is declared when the claim begins to wait, and its line begins then
        line = partition.line(wish)
        in_front = [wait for wait in self.waiting_on(wish.partition_id) if wait.line is line]
        return not in_front and line.has(wish)

    def _hand_out(self, partition: PartitionModel, wish: ClaimSamples, line: Line) -> Handed:
        rows = [row for unit in line.first(wish) for row in rows_of(unit)]
        partition.deliver(wish.task, rows)
        if wish.consume:
            partition.consume(wish.task, rows)
        session = self.session(wish.session_id)
        return self.handed(wish, rows, [session] if session else [], consumed=wish.consume)

    def handed(self, wish: Wish, rows: list[Row], holders: Iterable[Session], *, consumed: bool = False) -> Handed:
        claim = Claim(wish.partition_id, wish.task, rows, [], ended="committed" if consumed else "")
        if not consumed:
            self.claims.append(claim)
            for session in holders:
                claim.holders.append(session)
                session.claims.append(claim)
        ledger = self.partitions[wish.partition_id].ledgers[wish.task]
        return Handed(claim, ledger, self.grant(wish, rows), consumed)

    def grant(self, wish: Wish, rows: Sequence[Row]) -> Grant:
        partition = self.partitions[wish.partition_id]
        return Grant(
            "",
            tuple(row.sample_id for row in rows),
            np.array([row.length for row in rows], np.int64),
            tuple(row.tags for row in rows),
            np.zeros(0, np.int64),  # of rows that are being put nobody knows them yet
            np.array([row.standings[wish.task].deliveries for row in rows], np.int64),
            group_parts(rows) if wish.whole_groups else (),
            staleness=np.array([partition.staleness(row) for row in rows], np.int64),
        )

    def serve(self, partition: PartitionModel) -> None:
        """Those who wait for the partition are served at the end of the turn."""
        self.touched[partition] = None

    def follow_up(self) -> None:
        """What follows from a change: rows that tasks drop leave, calls at entrances go on, and claims are served."""
        self._settle()
        while self.touched or self.may_let_in():  # claims that were served may have made room
            self._settle()

    def _settle(self) -> None:
        self.drop_unwanted()
        self.let_in()
        touched = [one for one in self.touched if self.partitions.get(one.partition_id) is one]
        for partition in touched:
            self._serve(partition)
        self.touched = dict.fromkeys(one for one in touched if one.has_droppable)

    def drop_unwanted(self) -> None:
        for partition in self.touched:
            partition.follow_version()
            for why, counted in (("stale", "stale"), ("excluded", "filtered")):
                for task in partition.definition.tasks:
                    partition.remove(partition.droppable(task, why), counted)

    def let_in(self) -> None:
        raise NotImplementedError

    def may_let_in(self) -> bool:
        raise NotImplementedError

    def _serve(self, partition: PartitionModel) -> None:
        """Of those at the head of their line who can be served, the longest waiting is; until nobody can. Those who
        never will be are told so.
        """
        for task in partition.definition.tasks:
            self._serve_task(partition, task)
            while hopeless := [
                wait
                for wait in self.waiting_on(partition.partition_id)
                if wait.wish.task == task and partition.is_hopeless(wait.wish)
            ]:
                for wait in hopeless:
                    self.waiting.remove(wait)
                    self.effects.ended += wait.callers
                self._serve_task(partition, task)

    def _serve_task(self, partition: PartitionModel, task: str) -> None:
        while (wait := self._next_served(partition, task)) is not None:
            self.waiting.remove(wait)
            self.receive(partition, wait)

    def receive(self, partition: PartitionModel, wait: Wait) -> None:
        """The turn of a claim, or of all callers of a step, has come."""
        if isinstance(wait.wish, ClaimSamples):
            self._tell(wait.callers[0], self._hand_out(partition, wait.wish, wait.line))
            return
        step = self.steps.take(partition, wait.wish, wait.line)
        for caller in wait.callers:
            assert not isinstance(caller[1], ClaimSamples)
            self._tell(caller, self.steps.hand(partition, step, caller[1]))

    def _tell(self, caller: tuple[int, Wish], handed: Handed) -> None:
        self.effects.granted.append((*caller, handed))

    def check_may_wait(self, partition: PartitionModel, wish: Wish) -> None:
        too_many = len(self.callers()) >= self.limits.max_waiting_claims
        refuse_if(
            (self.draining, Reason.DRAINING),
            (too_many and not self.draining, Reason.LIMIT_REACHED),
            (partition.is_hopeless(wish), Reason.END_OF_DATA),
        )

    def wait(self, wish: Wish, ticket: int) -> None:
        """A claim stands in line, or with the others of its step."""
        partition = self.partitions[wish.partition_id]
        partition.declare(wish.required_fields)
        others = None if isinstance(wish, ClaimSamples) else self.steps.waiting(wish)
        if others is None:
            self.waiting.append(Wait(wish, [(ticket, wish)], partition.line(wish)))
        else:
            others.callers.append((ticket, wish))

    def _next_served(self, partition: PartitionModel, task: str) -> Wait | None:
        passed = []
        for wait in self.waiting_on(partition.partition_id):
            line = wait.line if wait.wish.task == task else None
            if line is not None and line not in passed:
                if line.has(wait.wish):
                    return wait
                passed.append(line)
        return None

    def leave_line(self, tickets: Iterable[int]) -> None:
        """Claims that wait are given up, or their callers are gone; then those behind them may be served."""
        for partition in self.out_of_line(tickets):
            self.serve(partition)

    def out_of_line(self, tickets: Iterable[int]) -> list[PartitionModel]:
        """Claims wait no longer; the partitions in which others may now be served."""
        tickets, left = set(tickets), []
        for wait in list(self.waiting):
            wait.callers = [caller for caller in wait.callers if caller[0] not in tickets]
            if not wait.callers:
                self.waiting.remove(wait)
                left.append(wait)
        return [self.partitions[wait.wish.partition_id] for wait in left]

    def supersede_wait(self, request_id: str) -> None:
        self.fail_callers(
            [ticket for ticket, wish in self.callers() if wish.request_id == request_id], Reason.SUPERSEDED
        )

    def fail_callers(self, tickets: Iterable[int], reason: Reason) -> None:
        tickets = sorted(tickets)
        self.effects.failed += [(ticket, {reason}) for ticket in tickets]
        self.leave_line(tickets)

    def fail(self, wait: Wait, reasons: set[Reason]) -> None:
        self.waiting.remove(wait)
        self.effects.failed += [(ticket, reasons) for ticket, _ in wait.callers]

    # -- ends of claims ------------------------------------------------------------------------------------------------

    def release(self, call: ReleaseClaim) -> ReleaseResult:
        claim = self.claim_of(call.claim_id)
        until = self.now + call.delay_s if call.delay_s else None
        until = HELD_FOR_STEP if claim.shard is not None else until
        rows, partition = claim.left(), self.partitions[claim.partition_id]
        self.end(claim, "released")
        if call.reason:
            partition.fail(claim.task, rows, "released", call.reason, until)
        else:
            partition.take_back(claim.task, rows, "released", until)
        self.serve(partition)
        return ReleaseResult(len(rows))

    def adopt(self, call: AdoptClaim) -> bool:
        reasons = set()
        try:
            claim = self.claim_of(call.claim_id)
        except No as no:
            reasons |= no.reasons
        heirs = [session for session in self.sessions if session.session_id == call.session_id]
        if not heirs:
            reasons.add(Reason.SESSION_EXPIRED)
        if reasons:
            raise No(*reasons)
        for holder in claim.holders:
            holder.claims.remove(claim)
        claim.holders = heirs
        heirs[0].claims.append(claim)
        return True

    def abandon(self, call: AbandonRequest) -> ReleaseResult:
        """Nobody will take a claim: its rows go back as if never delivered, and it is refused if it still comes."""
        answer = self.recall(call.claim_request_id, "ClaimSamples")
        self.supersede_wait(call.claim_request_id)
        handed = None if answer is None else answer.handed
        if handed is None or not handed.consumed:
            self.answers[call.claim_request_id] = Answer("ClaimSamples", Reason.SUPERSEDED.name, self.now)
        if handed is None or handed.consumed or handed.claim.ended or handed.claim.shard is not None:
            return ReleaseResult(0)
        claim = handed.claim
        rows, partition = claim.left(), self.partitions[claim.partition_id]
        self.end(claim, "abandoned")
        partition.take_back(claim.task, rows, "abandoned")
        self.serve(partition)
        return ReleaseResult(len(rows))

    def reset(self, call: ResetTask) -> ResetResult:
        partition = self.partition(call.partition_id)
        refuse_if((call.task not in partition.definition.tasks, Reason.TASK_NOT_REGISTERED))
        wanted = list(partition.rows) if call.sample_ids is None else partition.found(call.sample_ids)
        touched = set(wanted) | set(self._forget_steps(partition, call, wanted))
        fenced = [
            claim
            for claim in self.open_on(partition)
            if claim.task == call.task and (call.sample_ids is None or touched & set(claim.left()))
        ]
        touched |= {row for claim in fenced for row in claim.left()}
        rows = [row for row in partition.rows if row in touched]
        taken = sum(row.standings[call.task].state != "untaken" for row in rows)
        for claim in fenced:
            self.end(claim, "reset")
        partition.restore(call.task, rows)
        self.serve(partition)
        return ResetResult(taken, len(fenced))

    def _forget_steps(self, partition: PartitionModel, call: ResetTask, wanted: Sequence[Row]) -> list[Row]:
        """Forget the steps that have any of the rows; their rows that are claimed, or held for them."""
        rows: list[Row] = []
        for step in list(partition.steps[call.task]):
            own = [row for shard in step.shards for row in shard.rows if row.resident]
            if call.sample_ids is None or set(own) & set(wanted):
                partition.steps[call.task].remove(step)
                rows += [row for row in own if row.standings[call.task].state in ("claimed", "delayed")]
        return rows

    def end(self, claim: Claim, how: str) -> None:
        claim.ended, claim.seen = how, list(self.sessions)
        for session in claim.holders:
            session.claims.remove(claim)
        claim.holders = []

    def end_all_on(self, partition: PartitionModel, how: str) -> None:
        for claim in self.open_on(partition):
            self.end(claim, how)

    def open_on(self, partition: PartitionModel) -> list[Claim]:
        return [claim for claim in self.open_claims() if claim.partition_id == partition.partition_id]

    def give_back_together(self, claims: Sequence[Claim], *, died: bool) -> int:
        """Rows of one task come first in line together, in the order in which they were handed out, but those of shards
        stay with their step.
        """
        by_task: dict[tuple[str, str, bool], list[Claim]] = {}
        for claim in claims:
            by_task.setdefault((claim.partition_id, claim.task, claim.shard is not None), []).append(claim)
        count = 0
        for (partition_id, task, of_step), of_task in by_task.items():
            rows = [row for claim in of_task for row in claim.left()]
            count += len(rows)
            for claim in of_task:
                claim.ended = "expired" if died else "released"
            until = HELD_FOR_STEP if of_step else None
            if died:
                self.partitions[partition_id].fail(task, rows, "expired", "expired", until)
            else:
                self.partitions[partition_id].take_back(task, rows, "released", until)
        for partition_id in {key[0]: None for key in by_task}:
            self.serve(self.partitions[partition_id])
        return count


def group_parts(rows: Sequence[Row]) -> tuple[GroupPart, ...]:
    """Rows of one group adjoin; a row outside of groups is a part of its own."""
    parts: list[list[Row]] = []
    for row in rows:
        if parts and row.group is not None and parts[-1][0].group is row.group:
            parts[-1].append(row)
        else:
            parts.append([row])
    return tuple(_part(part) for part in parts)


def _part(rows: Sequence[Row]) -> GroupPart:
    group = rows[0].group
    if group is None:
        return GroupPart("", 1)
    return GroupPart(group.group_id, len(rows), group.start, group.end)


def order_fits(order: ClaimOrder | None, order_tag: str) -> bool:
    return (order in ("lowest_tag", "highest_tag")) == bool(order_tag)

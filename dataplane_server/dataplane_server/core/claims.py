"""Claims: rows handed to one session for one task, until they are committed, given back, or taken away.

A row is in at most one open claim of a task. Every delivery has a claim of its own, whose id is its fence: once a claim
has ended nothing can be done in its name, so whoever comes late with it (a process that slept through its session, a
message that took the long way) changes nothing. A claim keeps rows by slot and generation, so what was cleared
meanwhile, or cleared and put again under the same id, is never mistaken for its own.

    open ──commit──────────────────────> committed   rows are consumed
      │ ──release, caller gone─────────> released, abandoned   rows go back
      └ ──last holder's session died───> expired     rows go back, or are dead letters
        ──reset, re-registration───────> reset       rows go back

A claim is held by a session; a shard of a step by the sessions of all who asked for it, and it ends with the last. Rows
of a shard do not go back to the task but stay with their step (see `steps`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from dataplane_server.core.calls import ClaimRequest, Grant, Granted, ReleaseResult, Waiting
from dataplane_server.core.claim_line import Asker, ClaimLine
from dataplane_server.core.claim_table import ClaimTable, OpenClaim
from dataplane_server.core.delays import Due
from dataplane_server.core.deliveries import How
from dataplane_server.core.names import check_reason
from dataplane_server.core.partition import Partition
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import Slots
from dataplane_server.core.sessions import Session
from dataplane_server.core.state import State, superseded


class ClaimDesk:
    """Hands out claims and ends them."""

    def __init__(self, state: State, line: ClaimLine, claims: ClaimTable) -> None:
        self._state = state
        self._claims = claims
        self._line = line
        self._ticket_of: dict[str, int] = {}  # request_id of a claim that waits -> ticket

    # -- claim ---------------------------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest, now: float) -> Grant | Waiting:
        """Take rows, or wait for them (an effect `Granted` or `Failed` follows)."""
        answer = self._state.answers.recall(request.request_id, "claim", now)
        if isinstance(answer, Grant):
            return answer
        if answer is not None:
            raise superseded()
        partition, mask = self._line.check(request)
        if request.session_id:
            self._state.sessions.find(request.session_id)
        self._supersede(request.request_id, now)
        slots = self._line.take(partition, request, mask)
        if slots is not None:
            grant = self._grant(partition, request, slots, now)
            partition.task(request.task).observe(now)
            return grant
        asker = _PlainAsker(self, request)
        asker.ticket = self._line.wait(partition, asker, mask, now)
        self._ticket_of[request.request_id] = asker.ticket
        partition.task(request.task).observe(now)
        return Waiting(asker.ticket)

    def give_up(self, ticket: int, now: float) -> Refusal | None:
        """End the wait of a claim whose deadline has come; what to tell its caller. None for an unknown ticket."""
        asker = self.abandon(ticket, now)
        return None if asker is None else self._line.timeout(asker.wish)

    def abandon(self, ticket: int, now: float) -> Asker | None:
        """Forget a claim that waits, if there is one. Those behind it in line are served if they can be."""
        if ticket not in self._line:
            return None
        asker = self._line.leave(ticket)
        self._ticket_of.pop(asker.wish.request_id, None)
        self._line.serve(self._state.partition(asker.wish.partition_id), now)
        return asker

    def abandon_request(self, request_id: str, claim_request_id: str, now: float) -> ReleaseResult:
        """The caller will not take the answer to a claim: its rows go back as if they had not been delivered, and the
        request, should it still come, is refused.
        """
        answer = self._state.answers.recall(request_id, "release", now)
        if isinstance(answer, ReleaseResult):
            return answer
        granted = self._state.answers.recall(claim_request_id, "claim", now)
        self._supersede(claim_request_id, now)
        rows = 0
        claim = self._claims.get(granted.claim_id) if isinstance(granted, Grant) else None
        if claim is not None and not claim.of_step:  # a shard stays with its step, whoever holds it
            rows = len(self._give_back([claim], "abandoned", now))
            self._line.serve(claim.partition, now)
        result = ReleaseResult(rows)
        if not isinstance(granted, Grant) or granted.claim_id:
            self._state.answers.remember(claim_request_id, "claim", "abandoned", now)
        self._state.answers.remember(request_id, "release", result, now)
        return result

    def grant_waiting(self, request: ClaimRequest, ticket: int, partition: Partition, slots: Slots, now: float) -> None:
        """A claim that waited has its rows."""
        del self._ticket_of[request.request_id]
        self._state.effects.append(Granted(ticket, self._grant(partition, request, slots, now)))

    def fail_waiting(self, request: ClaimRequest, ticket: int, refusal: Refusal) -> None:
        """A claim that waited gets no rows."""
        del self._ticket_of[request.request_id]
        self._state.fail(ticket, refusal)

    def _grant(self, partition: Partition, request: ClaimRequest, slots: Slots, now: float) -> Grant:
        sessions = [request.session_id] if request.session_id else []
        grant = self.hand_out(
            partition, request.task, slots, sessions, now, consume=request.consume, whole_groups=request.whole_groups
        )
        self._state.answers.remember(request.request_id, "claim", grant, now)
        return grant

    def hand_out(
        self,
        partition: Partition,
        task_name: str,
        slots: Slots,
        sessions: Iterable[str],
        now: float,
        *,
        consume: bool = False,
        whole_groups: bool = False,
        of_step: bool = False,
    ) -> Grant:
        """A new claim on rows that are in no view; none when they are consumed at once."""
        task, rows = partition.task(task_name), partition.rows
        task.take(slots, consume=consume)
        task.flow.claims += 1
        sample_ids = tuple(rows.ids(slots))
        claim_id = "" if consume else f"{self._state.incarnation}-{self._state.ticket()}"
        who = ""
        if claim_id:
            claim = OpenClaim(claim_id, partition, task_name, slots, rows.stamp(slots), sample_ids)
            claim.of_step = of_step
            self._claims.add(claim)
            for session_id in sessions:
                self._claims.hold(claim, session_id)
                who = who or self._state.sessions.name(session_id)
        what = "committed" if consume else "claimed"
        self._state.journal.note(
            what, partition.partition_id, sample_ids, now, who=who, task=task_name, claim_id=claim_id
        )
        return Grant(
            claim_id,
            sample_ids,
            rows["sequence_length"][slots].astype(np.int64),
            rows.tags_of(slots),
            rows.generations(slots),
            task.deliveries.counts(slots),
            partition.groups.parts(slots) if whole_groups else (),
        )

    def _supersede(self, request_id: str, now: float) -> None:
        earlier = self._ticket_of.get(request_id)
        if earlier is not None:
            self._state.fail(earlier, superseded())
            self.abandon(earlier, now)

    # -- commit --------------------------------------------------------------------------------------------------------

    def size(self, claim_id: str, now: float) -> int:
        """Rows handed out with an open claim."""
        return len(self._claims.find(claim_id, now).slots)

    def rows_of(self, claim_id: str, now: float) -> tuple[Partition, tuple[str, ...]]:
        """Partition and samples of an open claim all of whose rows are there. Refusal SAMPLE_NOT_FOUND otherwise."""
        claim = self._claims.find(claim_id, now)
        gone = np.flatnonzero(~claim.partition.rows.still(claim.slots, claim.stamps))
        if gone.size:
            sample_id = claim.sample_ids[int(gone[0])]
            partition_id = claim.partition.partition_id
            message = (
                f"partition {partition_id!r}: sample {sample_id!r} of claim {claim_id!r} was cleared; "
                "commit without columns or release the claim"
            )
            raise Refusal(Reason.SAMPLE_NOT_FOUND, message, partition_id=partition_id, sample_id=sample_id)
        return claim.partition, claim.sample_ids

    def check_write_back(self, claim_id: str, partition: Partition, slots: Slots, now: float) -> None:
        """Refuse a write in the name of a claim that is not open, or to rows that are not its own."""
        claim = self._claims.find(claim_id, now)
        left = claim.left()
        strange = np.flatnonzero(~np.isin(slots, left)) if claim.partition is partition else np.arange(len(slots))
        if strange.size:
            message = (
                f"partition {partition.partition_id!r}: row {int(strange[0])} of the put is not one of the "
                f"{len(left)} rows of claim {claim_id!r}"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition.partition_id, claim_id=claim_id)

    def commit(self, claim_id: str, now: float, size_bytes: int = 0) -> int:
        """End a claim; how many of its rows are now consumed. Every holder of a shard may do so; the first one does.
        size_bytes: of the columns that came with it.
        """
        before = self._claims.committed_shard(claim_id)
        if before is not None:
            return before
        claim = self._claims.find(claim_id, now)
        left = claim.left()
        task = claim.partition.tasks[claim.task]
        task.consume(left)
        task.flow.commits += 1
        task.flow.commit_bytes += size_bytes
        self._claims.note("committed", claim, left, now)
        self._claims.end(claim, "committed", len(left))
        task.observe(now)
        return len(left)

    # -- give back -----------------------------------------------------------------------------------------------------

    def release(self, request_id: str, claim_id: str, now: float, delay_s: float, reason: str) -> ReleaseResult:
        """End a claim; its rows go back, first in line, at once or when the delay is over."""
        answer = self._state.answers.recall(request_id, "release", now)
        if isinstance(answer, ReleaseResult):
            return answer
        self._check_release(delay_s, reason)
        claim = self._claims.find(claim_id, now)
        held_until = now + delay_s if delay_s else None
        left = self._give_back([claim], "released", now, reason, held_until)
        if held_until is not None and not claim.of_step:
            self._state.delays.add(held_until, claim.partition.partition_id, claim.task, left)
            if self._state.delays.crowded:
                self._state.delays.sweep(self._stands)
        result = ReleaseResult(len(left))
        self._state.answers.remember(request_id, "release", result, now)
        self._line.serve(claim.partition, now)
        return result

    def _stands(self, due: Due) -> bool:
        """Whether any row still waits for a delay."""
        partition = self._state.partitions.get(due.partition_id)
        task = None if partition is None else partition.tasks.get(due.task)
        return task is not None and task.is_held(due.slots, due.at)

    def _check_release(self, delay_s: float, reason: str) -> None:
        limits = self._state.limits
        if not 0 <= delay_s <= limits.max_delay_s:
            message = f"a release may be delayed by 0 to {limits.max_delay_s:.0f} seconds, got {delay_s:g}"
            raise Refusal(Reason.INVALID_REQUEST, message)
        check_reason(reason, limits)

    def _give_back(
        self,
        claims: list[OpenClaim],
        how: How,
        now: float,
        reason: str = "",
        held_until: float | None = None,
        who: str = "",
    ) -> Slots:
        """End claims of one task; their rows go back in order, those of shards to their step. Which rows were there."""
        first = claims[0]
        if first.of_step:
            held_until = math.inf
        task, partition = first.partition.tasks[first.task], first.partition
        lefts = [claim.left() for claim in claims]
        left = np.concatenate(lefts)
        for claim, rows in zip(claims, lefts, strict=True):
            self._claims.note("released" if how == "abandoned" else how, claim, rows, now, reason, who)
            self._claims.end(claim, how, len(rows))
        if not reason and how != "expired":
            if held_until is None:
                task.give_back(left, how)
            else:
                task.delay(left, how, held_until)
            return left
        dead = task.fail(left, how, reason or how, partition.definition.max_deliveries, held_until)
        if len(dead):
            ids = partition.rows.ids(dead)
            self._state.journal.note(
                "dead_letter", partition.partition_id, ids, now, task=first.task, reason=reason or how
            )
        return left

    # -- sessions ------------------------------------------------------------------------------------------------------

    def adopt(self, request_id: str, claim_id: str, session_id: str, now: float) -> None:
        """Move a claim to another session, which holds it alone from then on."""
        if self._state.answers.recall(request_id, "adopt", now) is not None:
            return
        claim = self._claims.find(claim_id, now)
        self._state.sessions.find(session_id)
        for holder in list(claim.sessions):
            self._claims.let_go(claim, holder)
        self._claims.hold(claim, session_id)
        who = self._state.sessions.name(session_id)
        self._claims.note("adopted", claim, claim.left(), now, who=who)
        self._state.answers.remember(request_id, "adopt", True, now)

    def session_ended(self, session: Session, now: float, *, died: bool) -> tuple[int, int]:
        """Give back what nobody else holds; how many claims and rows. A session that closed had not used them."""
        lone = [self._claims.find(claim_id, now) for claim_id in session.claims]
        for claim in lone:
            del claim.sessions[session.session_id]
        session.claims.clear()
        by_task: dict[tuple[str, str, bool], list[OpenClaim]] = {}
        for claim in lone:
            if not claim.sessions:
                by_task.setdefault((claim.partition.partition_id, claim.task, claim.of_step), []).append(claim)
        how: How = "expired" if died else "released"
        rows = sum(len(self._give_back(claims, how, now, who=session.client_name)) for claims in by_task.values())
        for partition_id in dict.fromkeys(key[0] for key in by_task):
            self._line.serve(self._state.partition(partition_id), now)
        return sum(map(len, by_task.values())), rows

    # -- ends by the server --------------------------------------------------------------------------------------------

    def void(self, partition: Partition, now: float) -> None:
        """End the open claims on a partition whose cursors are being reset, or that is going."""
        for claim in [claim for claim in self._claims if claim.partition is partition]:
            self._claims.note("reset", claim, claim.left(), now)
            self._claims.end(claim, "reset", 0)

    def fence(self, partition: Partition, task: str, slots: Slots | None, now: float) -> tuple[Slots, int]:
        """End the claims of a task that hold any of the rows (None: all); the rows that they held, and how many claims.
        The rows are left for the caller to restore.
        """
        lefts = []
        for claim in [c for c in self._claims if c.partition is partition and c.task == task]:
            left = claim.left()
            if slots is None or np.isin(left, slots).any():
                lefts.append(left)
                self._claims.end(claim, "reset", len(left))
        return np.concatenate([np.zeros(0, np.int64), *lefts]), len(lefts)


class _PlainAsker:
    """A claim that waits."""

    callers = 1

    def __init__(self, desk: ClaimDesk, request: ClaimRequest) -> None:
        self.session_id = request.session_id
        self.ticket = 0
        self._desk = desk
        self._request = request

    @property
    def wish(self) -> ClaimRequest:
        return self._request

    def receive(self, partition: Partition, slots: Slots, now: float) -> None:
        self._desk.grant_waiting(self._request, self.ticket, partition, slots, now)

    def fail(self, refusal: Refusal) -> None:
        self._desk.fail_waiting(self._request, self.ticket, refusal)

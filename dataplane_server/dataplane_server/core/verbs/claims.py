"""Claims: rows granted to one session for one task, until the claim is committed, released, or ended by the server.

A row is in at most one open claim of a task. Every delivery has a claim of its own, whose id is its fence: after a
claim has ended, no call that names it changes anything, so a late caller (a process that slept through its session, a
delayed message) does no harm. A claim keeps its rows by slot and epoch, so a row that was cleared, or cleared and put
again under the same id, is never mistaken for its own.

    open ──commit──────────────────────────> committed   rows are consumed
      │ ──release, caller gone─────────────> released, abandoned   rows return to the queue
      └ ──last holder's session expired────> expired     rows return to the queue, or are dead letters
        ──reset, definition replaced───────> reset       rows return to the queue

A claim is held by a session. A shard of a step is held by the sessions of all callers that asked for it, and ends with
the last. Its rows do not return to the queue but stay with their step; see `verbs.steps`.
"""

from __future__ import annotations

import math

import numpy as np

from dataplane_server.core.calls.answers import Grant, ReleaseResult, Waiting
from dataplane_server.core.calls.names import check_reason
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import AdoptClaim, ClaimCall, ClaimSamples, ClaimShard, ReleaseClaim
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.rows.bookkeeping import DELAY_BYTES
from dataplane_server.core.state import issued_ids
from dataplane_server.core.state.claim_table import ClaimTable, OpenClaim
from dataplane_server.core.state.delays import Due
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.sessions import Session
from dataplane_server.core.state.state import Fact, State
from dataplane_server.core.tasks.deliveries import How
from dataplane_server.core.verbs.claim_queue import ClaimQueue


class Claims:
    """Grants claims and ends them."""

    def __init__(self, state: State, queue: ClaimQueue, table: ClaimTable) -> None:
        self._state = state
        self._table = table
        self._queue = queue

    # -- grant ---------------------------------------------------------------------------------------------------------

    def claim(self, call: ClaimSamples, now: float) -> Grant | Waiting:
        partition = self._queue.check(call)
        if not call.consume:
            self._table.check_room(self._queue.callers)
        if call.session_id:
            self._state.sessions.find(call.session_id)
        slots = self._queue.take(partition, call)
        if slots is None:
            return Waiting(self._queue.wait(partition, call, now))
        return self.grant(partition, call, slots, now)

    def grant(self, partition: Partition, call: ClaimCall, slots: Slots, now: float) -> Grant:
        """Grant rows that are in no view. A call that consumes on delivery gets no claim."""
        task, rows = partition.task(call.task), partition.rows
        consume = isinstance(call, ClaimSamples) and call.consume
        task.take(slots, consume=consume)
        task.counters.claims += 1
        if rows.newest_weight_version is not None:
            behind = rows.staleness(slots)
            known = behind >= 0
            task.counters.versioned += int(np.count_nonzero(known))
            task.counters.versions_behind += int(behind[known].sum())
        sample_ids = tuple(rows.ids(slots))
        claim_id, who = "", self._state.sessions.name(call.session_id)
        if not consume:
            claim_id = issued_ids.claim_id(self._state.incarnation, self._state.ticket())
            shard = (call.step, call.dp_rank) if isinstance(call, ClaimShard) else None
            claim = OpenClaim(
                claim_id, partition, call.task, slots, rows.epochs(slots), sample_ids, now, shard, of_step=bool(shard)
            )
            self._table.add(claim)
            if call.session_id:
                self._table.hold(claim, call.session_id)
        what = "committed" if consume else "claimed"
        self._state.report(Fact(what, partition.partition_id, sample_ids, who, call.task, claim_id))
        return Grant(
            claim_id,
            sample_ids,
            rows["sequence_length"][slots].astype(np.int64),
            rows.tags_of(slots),
            rows.generations(slots),
            task.deliveries.counts(slots),
            partition.groups.parts(slots) if call.whole_groups else (),
            rows.tags_bytes(slots),
            rows.staleness(slots),
        )

    # -- commit --------------------------------------------------------------------------------------------------------

    def client_of(self, claim_id: str) -> str:
        """See `ClaimTable.client_of`."""
        return self._table.client_of(claim_id)

    def size(self, claim_id: str) -> int:
        """The number of rows granted with an open claim."""
        return len(self._table.find(claim_id).slots)

    def rows_of(self, claim_id: str) -> tuple[Partition, tuple[str, ...]]:
        """Partition and samples of an open claim. Refusal SAMPLE_NOT_FOUND if one of its rows was cleared."""
        claim = self._table.find(claim_id)
        gone = np.flatnonzero(~claim.partition.rows.still(claim.slots, claim.epochs))
        if gone.size:
            sample_id = claim.sample_ids[int(gone[0])]
            partition_id = claim.partition.partition_id
            message = (
                f"partition {partition_id!r}: sample {sample_id!r} of claim {claim_id!r} was cleared; "
                "commit without columns or release the claim"
            )
            raise Refusal(Reason.SAMPLE_NOT_FOUND, message, partition_id=partition_id, sample_id=sample_id)
        return claim.partition, claim.sample_ids

    def check_write_back(self, claim_id: str, partition: Partition, slots: Slots) -> None:
        """Refuse a put that names a claim which is not open, or rows which are not the claim's."""
        claim = self._table.find(claim_id)
        left = claim.left()
        strange = np.flatnonzero(~np.isin(slots, left)) if claim.partition is partition else np.arange(len(slots))
        if strange.size:
            message = (
                f"partition {partition.partition_id!r}: row {int(strange[0])} of the put is not one of the "
                f"{len(left)} rows of claim {claim_id!r}"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition.partition_id, claim_id=claim_id)

    def commit(self, claim_id: str, size_bytes: int = 0) -> int:
        """End a claim. Returns how many of its rows are now consumed. Every holder of a shard may commit it; the first
        one does. size_bytes: of the columns that came with it.
        """
        before = self._table.committed_shard(claim_id)
        if before is not None:
            return before
        claim = self._table.find(claim_id)
        left = claim.left()
        task = claim.partition.tasks[claim.task]
        task.consume(left)
        if claim.partition.definition.clear_when_consumed:
            self._state.changes.consumed.append((claim.partition, left))
        task.counters.commits += 1
        task.counters.commit_bytes += size_bytes
        if claim.of_step and claim.shard is not None:
            task.uncommitted[claim.shard[0]] -= 1
        self._table.report("committed", claim, left)
        self._table.end(claim, "committed", len(left))
        return len(left)

    # -- release -------------------------------------------------------------------------------------------------------

    def release(self, call: ReleaseClaim, now: float) -> ReleaseResult:
        limits = self._state.limits
        if not 0 <= call.delay_s <= limits.max_delay_s:
            message = f"the delay of a release must be 0 to {limits.max_delay_s:.0f} seconds, got {call.delay_s:g}"
            raise Refusal(Reason.INVALID_REQUEST, message)
        check_reason(call.reason, limits)
        claim = self._table.find(call.claim_id)
        if call.delay_s:
            self._state.bookkeeping.check(DELAY_BYTES * len(claim.slots), urgent=True)
        held_until = now + call.delay_s if call.delay_s else None
        left = self._release([claim], "released", call.reason, held_until)
        if held_until is not None and not claim.of_step:
            self._state.delays.add(held_until, claim.partition.partition_id, claim.task, left)
            if self._state.delays.crowded:
                self._state.delays.sweep(self._is_needed)
        return ReleaseResult(len(left))

    def abandon(self, claim_id: str) -> int:
        """Release a claim whose caller never got the answer; returns the number of rows. The rows of a shard stay with
        their step: other ranks may hold it.
        """
        claim = self._table.get(claim_id)
        return 0 if claim is None or claim.of_step else len(self._release([claim], "abandoned"))

    def _is_needed(self, due: Due) -> bool:
        """Whether a row is still held until then."""
        partition = self._state.partitions.get(due.partition_id)
        task = None if partition is None else partition.tasks.get(due.task)
        return task is not None and task.is_held(due.slots, due.at)

    def _release(
        self, claims: list[OpenClaim], how: How, reason: str = "", held_until: float | None = None, who: str = ""
    ) -> Slots:
        """End claims of one task. Their rows return to the queue in order, those of shards to their step. Returns the
        rows that still exist.
        """
        first = claims[0]
        if first.of_step:
            held_until = math.inf
        task, partition = first.partition.tasks[first.task], first.partition
        lefts = [claim.left() for claim in claims]
        left = np.concatenate(lefts)
        for claim, rows in zip(claims, lefts, strict=True):
            self._table.report("released" if how == "abandoned" else how, claim, rows, reason, who)
            self._table.end(claim, how, len(rows))
        if not reason and how != "expired":
            if held_until is None:
                task.return_unused(left, how)
            else:
                task.delay(left, how, held_until)
            return left
        dead = task.fail(left, how, reason or how, partition.definition.max_deliveries, held_until)
        if len(dead):
            ids = partition.rows.ids(dead)
            self._state.report(Fact("dead_letter", partition.partition_id, ids, task=first.task, reason=reason or how))
        return left

    # -- sessions ------------------------------------------------------------------------------------------------------

    def adopt(self, call: AdoptClaim) -> bool:
        claim = self._table.find(call.claim_id)
        self._state.sessions.find(call.session_id)
        for holder in list(claim.sessions):
            self._table.release(claim, holder)
        self._table.hold(claim, call.session_id)
        self._table.report("adopted", claim, claim.left(), who=self._state.sessions.name(call.session_id))
        return True

    def end_session(self, session: Session, *, expired: bool) -> tuple[int, int]:
        """Release what no other session holds. Returns the number of claims and of rows. The rows of a session that was
        closed count as not used.
        """
        held = [self._table.find(claim_id) for claim_id in session.claims]
        for claim in held:
            del claim.sessions[session.session_id]
        session.claims.clear()
        by_task: dict[tuple[str, str, bool], list[OpenClaim]] = {}
        for claim in held:
            if not claim.sessions:
                by_task.setdefault((claim.partition.partition_id, claim.task, claim.of_step), []).append(claim)
        how: How = "expired" if expired else "released"
        rows = sum(len(self._release(claims, how, who=session.client_name)) for claims in by_task.values())
        return sum(map(len, by_task.values())), rows

    # -- ends by the server --------------------------------------------------------------------------------------------

    def void(self, partition: Partition) -> None:
        """End the open claims on a partition that is dropped, or whose cursors are reset."""
        for claim in self._table:
            if claim.partition is partition:
                self._table.report("reset", claim, claim.left())
                self._table.end(claim, "reset", 0)

    def fence(self, partition: Partition, task: str, slots: Slots | None) -> tuple[Slots, int]:
        """End the claims of a task that hold any of the rows (None: all). Returns their rows, which the caller
        restores, and the number of claims.
        """
        lefts = []
        for claim in self._table.open_on(partition, task):
            left = claim.left()
            if slots is None or np.isin(left, slots).any():
                lefts.append(left)
                self._table.end(claim, "reset", len(left))
        return np.concatenate([np.zeros(0, np.int64), *lefts]), len(lefts)

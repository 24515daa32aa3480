"""Claims: rows handed to one caller for one task, until they are committed or released.

A row is in at most one open claim of a task. A claim whose rows are not there yet waits at its view and is served by
whatever makes rows ready: a put, a release, a reset. A claim keeps rows by slot and generation, so what was cleared
meanwhile, or cleared and put again under the same id, is never mistaken for its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dataplane_server.core.calls import ClaimRequest, Grant, Granted, ReleaseResult, Waiting
from dataplane_server.core.names import check_distinct
from dataplane_server.core.partition import Partition
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import Generations, Slots
from dataplane_server.core.state import State, draining, superseded
from dataplane_server.core.tasks import CLAIMED, CONSUMED, UNTAKEN, View, Waiter


@dataclass(frozen=True, slots=True, eq=False)
class _OpenClaim:
    partition: Partition
    task: str
    slots: Slots
    generations: Generations
    sample_ids: tuple[str, ...]

    def left(self) -> Slots:
        """The rows that are still there."""
        return self.slots[self.partition.rows.still(self.slots, self.generations)]


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingClaim:
    request: ClaimRequest
    view: View


class ClaimDesk:
    """Open claims by id, waiting claims by ticket. `incarnation` keeps ids of one server life apart from another's."""

    def __init__(self, state: State, incarnation: str) -> None:
        self._state = state
        self._incarnation = incarnation
        self._open: dict[str, _OpenClaim] = {}
        self._waiting: dict[int, _WaitingClaim] = {}
        self._ticket_of: dict[str, int] = {}  # request_id -> ticket

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def open(self) -> int:
        return len(self._open)

    # -- claim ---------------------------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest, now: float) -> Grant | Waiting:
        """Take rows, or wait for them (an effect `Granted` or `Failed` follows)."""
        answer = self._state.answers.recall(request.request_id, "claim", now)
        if isinstance(answer, Grant):
            return answer
        partition, mask = self._check(request)
        self._supersede(request.request_id, now)
        view = partition.task(request.task).view(mask)
        if not view.waiters and view.ready >= request.min_size:
            return self._grant(partition, request, view.first(min(view.ready, request.batch_size)), now)
        return self._wait(request, mask)

    def give_up(self, ticket: int, now: float) -> Refusal:
        """End the wait of a claim whose deadline has come; what to tell its caller."""
        refusal = self._timeout(self._waiting[ticket].request)
        self.abandon(ticket, now)
        return refusal

    def abandon(self, ticket: int, now: float) -> None:
        """Forget a claim that waits; unknown tickets are fine. Those behind it in line are served if they can be."""
        if ticket in self._waiting:
            request = self._forget(ticket)
            self.serve(self._state.partition(request.partition_id), now)

    def serve(self, partition: Partition, now: float) -> None:
        """Hand ready rows to the claims that wait for them, the longest waiting first."""
        for task in partition.tasks.values():
            while (pair := task.next_waiter()) is not None:
                view, waiter = pair
                request = self._forget(waiter.ticket)
                slots = view.first(min(view.ready, waiter.batch_size))
                self._state.effects.append(Granted(waiter.ticket, self._grant(partition, request, slots, now)))

    # -- commit and release --------------------------------------------------------------------------------------------

    def size(self, claim_id: str) -> int:
        """Rows handed out with an open claim."""
        return len(self._find(claim_id).slots)

    def partition_id(self, claim_id: str) -> str | None:
        """The partition of an open claim; None when the claim is not open."""
        claim = self._open.get(claim_id)
        return None if claim is None else claim.partition.partition_id

    def rows_of(self, claim_id: str) -> tuple[Partition, tuple[str, ...]]:
        """Partition and samples of an open claim all of whose rows are there. Refusal SAMPLE_NOT_FOUND otherwise."""
        claim = self._find(claim_id)
        gone = np.flatnonzero(~claim.partition.rows.still(claim.slots, claim.generations))
        if gone.size:
            sample_id = claim.sample_ids[int(gone[0])]
            partition_id = claim.partition.partition_id
            message = (
                f"partition {partition_id!r}: sample {sample_id!r} of claim {claim_id!r} was cleared; "
                "commit without columns or release the claim"
            )
            raise Refusal(Reason.SAMPLE_NOT_FOUND, message, partition_id=partition_id, sample_id=sample_id)
        return claim.partition, claim.sample_ids

    def commit(self, claim_id: str) -> int:
        """End a claim; how many of its rows are now consumed."""
        claim = self._find(claim_id)
        left = claim.left()
        claim.partition.tasks[claim.task].consume(left)
        del self._open[claim_id]
        return len(left)

    def release(self, request_id: str, claim_id: str, now: float) -> ReleaseResult:
        """End a claim; its rows go back, first in line."""
        answer = self._state.answers.recall(request_id, "release", now)
        if isinstance(answer, ReleaseResult):
            return answer
        claim = self._find(claim_id)
        left = claim.left()
        del self._open[claim_id]
        claim.partition.tasks[claim.task].give_back(left)
        result = ReleaseResult(len(left))
        self._state.answers.remember(request_id, "release", result, now)
        self.serve(claim.partition, now)
        return result

    # -- what happens to a partition -----------------------------------------------------------------------------------

    def void(self, partition: Partition) -> None:
        """End the open claims on a partition whose cursors were reset or that is gone."""
        for claim_id in [claim_id for claim_id, claim in self._open.items() if claim.partition is partition]:
            del self._open[claim_id]

    def fail_waiting_on(self, partition_id: str, refusal: Refusal) -> None:
        """End the waits on a partition that is gone."""
        for ticket in self._waiting_on(partition_id):
            self._fail(ticket, refusal)

    def fail_orphans(self, partition_id: str) -> None:
        """End the waits for tasks and fields that the partition no longer has; others go on."""
        for ticket in self._waiting_on(partition_id):
            refusal = self._why_not(self._waiting[ticket].request)
            if refusal is not None:
                self._fail(ticket, refusal)

    def owned(self, partition: Partition, task: str) -> list[int]:
        """Slots that open claims of a task hold and that are still there."""
        claims = [claim for claim in self._open.values() if claim.partition is partition and claim.task == task]
        return [slot for claim in claims for slot in claim.left().tolist()]

    def drain(self) -> None:
        for ticket in list(self._waiting):
            self._fail(ticket, draining())

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _check(self, request: ClaimRequest) -> tuple[Partition, int]:
        most = self._state.limits.max_rows_per_call
        if not 1 <= request.min_size <= request.batch_size <= most:
            message = (
                f"a claim needs 1 <= min_size <= batch_size <= {most}, "
                f"got min_size {request.min_size} and batch_size {request.batch_size}"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=request.partition_id, task=request.task)
        check_distinct("required field", request.required_fields)
        partition = self._state.partition(request.partition_id)
        partition.task(request.task)
        return partition, partition.mask(request.required_fields)

    def _why_not(self, request: ClaimRequest) -> Refusal | None:
        try:
            self._check(request)
        except Refusal as refusal:
            return refusal
        return None

    def _wait(self, request: ClaimRequest, mask: int) -> Waiting:
        if self._state.draining:
            raise draining()
        limit = self._state.limits.max_waiting_claims
        if len(self._waiting) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"{limit} claims wait already", max_waiting_claims=limit)
        ticket = self._state.ticket()
        view = self._state.partition(request.partition_id).task(request.task).view(mask)
        view.waiters[ticket] = Waiter(ticket, request.min_size, request.batch_size)
        self._waiting[ticket] = _WaitingClaim(request, view)
        self._ticket_of[request.request_id] = ticket
        return Waiting(ticket)

    def _grant(self, partition: Partition, request: ClaimRequest, slots: Slots, now: float) -> Grant:
        partition.task(request.task).take(slots, CONSUMED if request.consume else CLAIMED)
        rows = partition.rows
        sample_ids = tuple(rows.ids(slots))
        claim_id = "" if request.consume else f"{self._incarnation}-{self._state.ticket()}"
        if claim_id:
            self._open[claim_id] = _OpenClaim(partition, request.task, slots, rows.stamp(slots), sample_ids)
        lengths = rows["sequence_length"][slots].astype(np.int64)
        grant = Grant(claim_id, sample_ids, lengths, rows.tags_of(slots))
        self._state.answers.remember(request.request_id, "claim", grant, now)
        return grant

    def _supersede(self, request_id: str, now: float) -> None:
        earlier = self._ticket_of.get(request_id)
        if earlier is not None:
            self._state.fail(earlier, superseded())
            self.abandon(earlier, now)

    def _waiting_on(self, partition_id: str) -> list[int]:
        return [ticket for ticket, waiting in self._waiting.items() if waiting.request.partition_id == partition_id]

    def _fail(self, ticket: int, refusal: Refusal) -> None:
        """End a wait without serving those behind it."""
        self._forget(ticket)
        self._state.fail(ticket, refusal)

    def _forget(self, ticket: int) -> ClaimRequest:
        waiting = self._waiting.pop(ticket)
        del self._ticket_of[waiting.request.request_id]
        del waiting.view.waiters[ticket]
        return waiting.request

    def _find(self, claim_id: str) -> _OpenClaim:
        try:
            return self._open[claim_id]
        except KeyError:
            message = (
                f"claim {claim_id[:256]!r} is not open: it was committed, released, or voided by a re-registration"
            )
            raise Refusal(Reason.CLAIM_NOT_FOUND, message, claim_id=claim_id[:256]) from None

    def _timeout(self, request: ClaimRequest) -> Refusal:
        partition = self._state.partition(request.partition_id)
        task = partition.task(request.task)
        untaken = partition.rows["alive"] & (task.states == UNTAKEN)
        produced = partition.rows["produced"][untaken]
        lacking = {
            name: int(np.count_nonzero((produced & partition.field(name).bit) == 0)) for name in request.required_fields
        }
        reasons = [f"{count} of them lack field {name!r}" for name, count in lacking.items() if count]
        message = (
            f"partition {request.partition_id!r}, task {request.task!r}: {request.min_size} ready rows wanted; "
            f"{len(produced)} of {len(partition.rows)} resident rows are untaken"
            + "".join(f", {reason}" for reason in reasons)
        )
        return Refusal(Reason.CLAIM_TIMEOUT, message, partition_id=request.partition_id, task=request.task)

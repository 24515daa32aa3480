"""Queued claims, first come first served.

A claim that cannot be served at once is queued at the view of its fields. A put, a release or a reset that makes rows
ready there serves it; `core.turn` does so at the end of every turn. Calls for shards of one step share one place in the
queue: the rows of a step are granted to all ranks together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dataplane_server.core.calls.names import check_distinct
from dataplane_server.core.calls.refusal import Reason, Refusal, draining, superseded
from dataplane_server.core.calls.requests import ClaimSamples, ClaimShard
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State
from dataplane_server.core.tasks.task import AnyView, Task
from dataplane_server.core.tasks.task_states import UNTAKEN, Waiter

ClaimCall = ClaimSamples | ClaimShard
StepKey = tuple[str, str, int]
"""Partition, task and number of a step."""


@dataclass(frozen=True, slots=True, eq=False)
class QueuedClaim:
    """A place in the queue. number: tells the order of arrival. wanted: the first call; all calls of a step want the
    same. callers: the waiting calls by ticket.
    """

    number: int
    wanted: ClaimCall
    task: Task
    view: AnyView
    callers: dict[int, ClaimCall] = field(default_factory=dict)


class ClaimQueue:
    """All queued claims of a server."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._queued: dict[int, QueuedClaim] = {}  # by number
        self._of_ticket: dict[int, QueuedClaim] = {}
        self._ticket_of: dict[str, int] = {}  # by request_id
        self._of_step: dict[StepKey, QueuedClaim] = {}

    @property
    def callers(self) -> int:
        """Calls that wait."""
        return len(self._of_ticket)

    # -- claims that come ----------------------------------------------------------------------------------------------

    def check(self, call: ClaimCall) -> tuple[Partition, int]:
        """The partition, and the required fields as a mask. Refusal for a claim that can never be served."""
        most = self._state.limits.max_rows_per_call
        if not 1 <= call.min_size <= call.batch_size <= most:
            message = (
                f"a claim needs 1 <= min_size <= batch_size <= {most}, "
                f"got min_size {call.min_size} and batch_size {call.batch_size}"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=call.partition_id, task=call.task)
        check_distinct("required field", call.required_fields)
        partition = self._state.partition(call.partition_id)
        mask = partition.mask(call.required_fields)
        partition.task(call.task).check_view(mask, call.whole_groups)
        return partition, mask

    def take(self, partition: Partition, call: ClaimCall, mask: int) -> Slots | None:
        """Pop ready rows from their view; None if the claim has to wait."""
        view = partition.task(call.task).view(mask, call.whole_groups)
        if view.waiters or view.ready < call.min_size:
            return None
        return view.pop(min(view.ready, call.batch_size), call.max_tokens)

    def wait(self, partition: Partition, call: ClaimCall, mask: int, now: float) -> int:
        """Queue a call, beside the others of its step if there are any. Returns its ticket. Refusal if nothing may
        wait, or nothing more.
        """
        if self._state.draining:
            raise draining()
        limit = self._state.limits.max_waiting_claims
        if len(self._of_ticket) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"{limit} claims are queued already", max_waiting_claims=limit)
        ticket = self._state.ticket()
        queued = self._of_step.get(_step_key(call)) if isinstance(call, ClaimShard) else None
        if queued is None:
            queued = self._add(partition.task(call.task), call, mask, ticket, now)
        queued.callers[ticket] = call
        self._of_ticket[ticket] = queued
        self._ticket_of[call.request_id] = ticket
        return ticket

    def waiting_step(self, call: ClaimShard) -> ClaimShard | None:
        """What the queued calls of the same step want; None if there are none."""
        queued = self._of_step.get(_step_key(call))
        return queued.wanted if queued is not None and isinstance(queued.wanted, ClaimShard) else None

    def _add(self, task: Task, call: ClaimCall, mask: int, number: int, now: float) -> QueuedClaim:
        view = task.view(mask, call.whole_groups)
        view.waiters[number] = Waiter(number, call.min_size, call.batch_size, call.max_tokens, now)
        queued = self._queued[number] = QueuedClaim(number, call, task, view)
        if isinstance(call, ClaimShard):
            self._of_step[_step_key(call)] = queued
        return queued

    # -- claims that are served ----------------------------------------------------------------------------------------

    def pop(self, view: AnyView, waiter: Waiter, now: float) -> tuple[QueuedClaim, Slots]:
        """Take a claim that can be served out of the queue, and its rows out of their view."""
        queued = self._queued[waiter.number]
        queued.task.counters.claim_wait_s += len(queued.callers) * max(now - waiter.since, 0.0)
        for ticket in queued.callers:
            self._forget(ticket)
        self._remove(queued)
        return queued, view.pop(min(view.ready, waiter.batch_size), waiter.max_tokens)

    # -- waits that end ------------------------------------------------------------------------------------------------

    def give_up(self, ticket: int) -> Refusal | None:
        """End a wait at its deadline. Returns what to tell the caller; None for an unknown ticket."""
        queued = self.leave(ticket)
        return None if queued is None else self._timeout(queued.wanted)

    def leave(self, ticket: int) -> QueuedClaim | None:
        """A caller stops waiting. Returns where it was queued; None for an unknown ticket."""
        queued = self._of_ticket.get(ticket)
        if queued is not None:
            self._forget(ticket)
            del queued.callers[ticket]
            if not queued.callers:
                self._remove(queued)
        return queued

    def supersede(self, request_id: str) -> bool:
        """Fail an earlier attempt of a request that still waits. Returns whether there was one."""
        ticket = self._ticket_of.get(request_id)
        if ticket is None:
            return False
        self._fail(ticket, superseded())
        return True

    def fail_waiting_on(self, partition_id: str, refusal: Refusal) -> None:
        """Fail the claims on a partition that is gone."""
        for queued in self._waiting_on(partition_id):
            self._fail_all(queued, refusal)

    def fail_orphans(self, partition_id: str) -> None:
        """Fail the claims for tasks and fields that the partition no longer has."""
        for queued in self._waiting_on(partition_id):
            refusal = self._why_refused(queued.wanted)
            if refusal is not None:
                self._fail_all(queued, refusal)

    def fail_session(self, session_id: str) -> None:
        """Fail the claims of a session that has ended."""
        refusal = Refusal(Reason.SESSION_EXPIRED, f"session {session_id!r} ended while the claim was queued")
        waiting = [(ticket, queued.callers[ticket]) for ticket, queued in self._of_ticket.items()]
        for ticket in [ticket for ticket, call in waiting if call.session_id == session_id]:
            self._fail(ticket, refusal)

    def drain(self) -> None:
        """Fail all claims."""
        for queued in list(self._queued.values()):
            self._fail_all(queued, draining())

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _timeout(self, call: ClaimCall) -> Refusal:
        """Why a claim was not served in time."""
        partition = self._state.partition(call.partition_id)
        task = partition.task(call.task)
        untaken = partition.rows["alive"] & (task.states == UNTAKEN)
        produced = partition.rows["produced"][untaken]
        lacking = {
            name: int(np.count_nonzero((produced & partition.field(name).bit) == 0)) for name in call.required_fields
        }
        reasons = [f"{count} of them lack field {name!r}" for name, count in lacking.items() if count]
        hidden = int(np.count_nonzero(partition.rows["hidden"][untaken]))
        if hidden:
            reasons.append(f"{hidden} of them belong to groups that are still reserved")
        if task.delayed:
            reasons.append(f"{task.delayed} more are delayed by a release")
        others = task.waiting()
        message = (
            f"partition {call.partition_id!r}, task {call.task!r}: {call.min_size} ready "
            f"{'groups' if call.whole_groups else 'rows'} wanted; "
            f"{len(produced)} of {len(partition.rows)} resident rows are untaken"
            + "".join(f", {reason}" for reason in reasons)
            + (f"; {others} other claims of the task are queued, first come first served" if others else "")
        )
        return Refusal(Reason.CLAIM_TIMEOUT, message, partition_id=call.partition_id, task=call.task)

    def _why_refused(self, call: ClaimCall) -> Refusal | None:
        try:
            self.check(call)
        except Refusal as refusal:
            return refusal
        return None

    def _waiting_on(self, partition_id: str) -> list[QueuedClaim]:
        return [queued for queued in self._queued.values() if queued.wanted.partition_id == partition_id]

    def _fail_all(self, queued: QueuedClaim, refusal: Refusal) -> None:
        for ticket in list(queued.callers):
            self._fail(ticket, refusal)

    def _fail(self, ticket: int, refusal: Refusal) -> None:
        self.leave(ticket)
        self._state.fail(ticket, refusal)

    def _forget(self, ticket: int) -> None:
        queued = self._of_ticket.pop(ticket)
        del self._ticket_of[queued.callers[ticket].request_id]

    def _remove(self, queued: QueuedClaim) -> None:
        del self._queued[queued.number]
        if isinstance(queued.wanted, ClaimShard):
            del self._of_step[_step_key(queued.wanted)]
        queued.task.remove_waiter(queued.view, queued.number)


def _step_key(call: ClaimShard) -> StepKey:
    return call.partition_id, call.task, call.step

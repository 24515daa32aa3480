"""Queued claims, first come first served.

A claim that cannot be served at once is queued at the view of its fields. A put, a release or a reset that makes rows
ready there serves it; `core.turn` does so at the end of every turn. Calls for shards of one step share one place in the
queue: the rows of a step are granted to all ranks together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dataplane_server.core.calls.filters import check_filter, filter_bytes
from dataplane_server.core.calls.names import check_distinct
from dataplane_server.core.calls.policies import check_order
from dataplane_server.core.calls.refusal import Reason, Refusal, draining, superseded
from dataplane_server.core.calls.requests import ClaimCall, ClaimSamples, ClaimShard, unit_of
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State
from dataplane_server.core.state.task_rows import rows_left, untaken_in_broken_groups
from dataplane_server.core.tasks.readiness import Kind
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import Amount, Waiter
from dataplane_server.core.tasks.views import AnyView
from dataplane_server.core.verbs.locality import pop_near

_NEW_VIEW = -1
"""No mask of fields."""

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
    def kept_bytes(self) -> int:
        """Memory of the filters of calls that wait."""
        return sum(filter_bytes(call.where) for queued in self._queued.values() for call in queued.callers.values())

    @property
    def callers(self) -> int:
        """Calls that wait."""
        return len(self._of_ticket)

    def queued_on(self, partition_id: str, task: str) -> Iterator[QueuedClaim]:
        """The queued claims of a task (empty names: of all), the longest queued first."""
        for queued in self._queued.values():
            wanted = queued.wanted
            if partition_id in ("", wanted.partition_id) and task in ("", wanted.task):
                yield queued

    # -- claims that come ----------------------------------------------------------------------------------------------

    def check(self, call: ClaimCall) -> Partition:
        """The partition. Refusal for a claim that it cannot serve, whatever rows come."""
        most = self._state.limits.max_rows_per_call
        if not 1 <= call.min_size <= call.batch_size <= most:
            message = (
                f"a claim needs 1 <= min_size <= batch_size <= {most}, "
                f"got min_size {call.min_size} and batch_size {call.batch_size}"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=call.partition_id, task=call.task)
        if call.unit == "groups" and not call.whole_groups:
            message = "a claim whose unit is groups must take whole groups (whole_groups)"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=call.partition_id, task=call.task)
        check_distinct("required field", call.required_fields)
        check_filter(call.where, with_age=False)
        check_order(call.order or "ready", call.order_tag)
        partition = self._state.partition(call.partition_id)
        partition.task(call.task)
        partition.known_fields(call.required_fields, self._state.limits)
        if partition.definition.clear_when_consumed and isinstance(call, ClaimSamples) and call.consume:
            message = (
                f"partition {call.partition_id!r} clears rows as soon as every task has consumed them: a claim that "
                "consumes on delivery would lose them before they are read; use a claim that is committed"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=call.partition_id, task=call.task)
        return partition

    def take(self, partition: Partition, call: ClaimCall) -> Slots | None:
        """Pop ready rows from their view; None if the claim has to wait. Refusal if there can be no such view."""
        task, amount = partition.task(call.task), _amount(call)
        declared = all(name in partition.fields for name in call.required_fields)
        kind = _kind(call, task, partition.mask(call.required_fields) if declared else _NEW_VIEW)
        task.views.check(kind)
        if not declared:
            return None  # no row has produced what an open partition has yet to declare
        view = task.view(kind)
        return None if view.waiters or not view.has(amount) else _pop(view, amount, partition, call)

    def wait(self, partition: Partition, call: ClaimCall, now: float) -> int:
        """Queue a call, beside the others of its step if there are any. Returns its ticket. Declares the fields that it
        requires, in an open partition. Refusal if nothing may wait, or nothing more, or at the end of data.
        """
        if self._state.draining:
            raise draining()
        limit = self._state.limits.max_waiting_claims
        if len(self._of_ticket) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"{limit} claims are queued already", max_waiting_claims=limit)
        task = partition.task(call.task)
        if partition.is_ending and rows_left(partition, task, call.whole_groups, unit_of(call)) < call.min_size:
            raise end_of_data(partition, task, call)
        kept_bytes = filter_bytes(call.where)
        declare_bytes = partition.declare_bytes(call.required_fields)
        self._state.bookkeeping.check(kept_bytes + declare_bytes, urgent=True)
        self._state.bookkeeping.add(kept_bytes)
        partition.declare(call.required_fields)
        ticket = self._state.ticket()
        queued = self._of_step.get(_step_key(call)) if isinstance(call, ClaimShard) else None
        if queued is None:
            queued = self._add(task, call, partition.mask(call.required_fields), ticket, now)
        queued.callers[ticket] = call
        self._of_ticket[ticket] = queued
        self._ticket_of[call.request_id] = ticket
        return ticket

    def waiting_step(self, call: ClaimShard) -> ClaimShard | None:
        """What the queued calls of the same step want; None if there are none."""
        queued = self._of_step.get(_step_key(call))
        return queued.wanted if queued is not None and isinstance(queued.wanted, ClaimShard) else None

    def _add(self, task: Task, call: ClaimCall, mask: int, number: int, now: float) -> QueuedClaim:
        view = task.view(_kind(call, task, mask))
        view.waiters[number] = Waiter(number, _amount(call), now)
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
        partition = self._state.partition(queued.wanted.partition_id)
        return queued, _pop(view, waiter.amount, partition, queued.wanted)

    # -- waits that end ------------------------------------------------------------------------------------------------

    def place_of(self, ticket: int) -> QueuedClaim | None:
        """Where a call is queued; None for an unknown ticket."""
        return self._of_ticket.get(ticket)

    def leave(self, ticket: int) -> None:
        """A caller stops waiting. Unknown tickets are ignored."""
        queued = self._of_ticket.get(ticket)
        if queued is not None:
            self._forget(ticket)
            del queued.callers[ticket]
            if not queued.callers:
                self._remove(queued)

    def supersede(self, request_id: str) -> bool:
        """Fail an earlier attempt of a request that still waits. Returns whether there was one."""
        ticket = self._ticket_of.get(request_id)
        if ticket is None:
            return False
        self._fail(ticket, superseded())
        return True

    def fail_waiting_on(self, partition_id: str, refusal: Refusal) -> None:
        """Fail the claims on a partition that is gone."""
        for queued in list(self.queued_on(partition_id, "")):
            self._fail_all(queued, refusal)

    def fail_orphans(self, partition_id: str) -> None:
        """Fail the claims for tasks and fields that the partition no longer has."""
        for queued in list(self.queued_on(partition_id, "")):
            try:
                self.check(queued.wanted)
            except Refusal as refusal:  # noqa: PERF203  # few wait
                self._fail_all(queued, refusal)

    def end_hopeless(self, task: Task) -> int:
        """Fail the claims of a task for which too few rows are left, if no more rows will come. Returns the number of
        calls.
        """
        partition = self._state.partition(task.partition_id)
        if not partition.is_ending:
            return 0
        numbers = sorted(number for view in task.views for number in view.waiters)
        waiting = [self._queued[number] for number in numbers]
        kinds = [(queued.wanted.whole_groups, unit_of(queued.wanted)) for queued in waiting]
        left = {kind: rows_left(partition, task, *kind) for kind in set(kinds)}
        ended = [each for each, kind in zip(waiting, kinds, strict=True) if left[kind] < each.wanted.min_size]
        calls = sum(len(queued.callers) for queued in ended)
        for queued in ended:
            self._fail_all(queued, end_of_data(partition, task, queued.wanted))
        return calls

    def sessions(self) -> set[str]:
        """Sessions with queued claims."""
        return {queued.callers[ticket].session_id for ticket, queued in self._of_ticket.items()}

    def fail_session(self, session_id: str) -> None:
        """Fail the claims of a session that has ended."""
        refusal = Refusal(Reason.SESSION_EXPIRED, f"session {session_id!r} ended while the claim was queued")
        waiting = [(ticket, queued.callers[ticket]) for ticket, queued in self._of_ticket.items()]
        for ticket in [ticket for ticket, call in waiting if call.session_id == session_id]:
            self._fail(ticket, refusal)

    def fail_all(self, refusal: Refusal) -> None:
        for queued in list(self._queued.values()):
            self._fail_all(queued, refusal)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _fail_all(self, queued: QueuedClaim, refusal: Refusal) -> None:
        for ticket in list(queued.callers):
            self._fail(ticket, refusal)

    def _fail(self, ticket: int, refusal: Refusal) -> None:
        self.leave(ticket)
        self._state.fail(ticket, refusal)

    def _forget(self, ticket: int) -> None:
        queued = self._of_ticket.pop(ticket)
        call = queued.callers[ticket]
        del self._ticket_of[call.request_id]
        self._state.bookkeeping.add(-filter_bytes(call.where))

    def _remove(self, queued: QueuedClaim) -> None:
        del self._queued[queued.number]
        if isinstance(queued.wanted, ClaimShard):
            del self._of_step[_step_key(queued.wanted)]
        queued.task.remove_waiter(queued.view, queued.number)


def _pop(view: AnyView, amount: Amount, partition: Partition, call: ClaimCall) -> Slots:
    near = call.node if isinstance(call, ClaimSamples) else 0
    return pop_near(view, amount, partition.rows, near) if near else view.pop(amount)


def _amount(call: ClaimCall) -> Amount:
    counts_rows = call.whole_groups and unit_of(call) == "rows"
    return Amount(call.min_size, call.batch_size, call.max_tokens, counts_rows)


def _kind(call: ClaimCall, task: Task, mask: int) -> Kind:
    if call.order is not None:
        return Kind(mask, call.whole_groups, call.where, call.order, call.order_tag)
    return Kind(mask, call.whole_groups, call.where, task.policy.order, task.policy.order_tag)


def _step_key(call: ClaimShard) -> StepKey:
    return call.partition_id, call.task, call.step


def end_of_data(partition: Partition, task: Task, call: ClaimCall) -> Refusal:
    """Refusal END_OF_DATA for a claim on a closed partition, with what would get the rows that are left."""
    left, what = rows_left(partition, task, call.whole_groups, unit_of(call)), unit_of(call).removesuffix("s")
    count = f"{left or 'no'} {what}{' is' if left < 2 else 's are'} left"
    message = f"partition {call.partition_id!r} is closed and {count} for task {call.task!r}"
    if left:
        kind = "plain claim" if isinstance(call, ClaimShard) and left < call.dp_world else "claim"
        message += f", fewer than min_size {call.min_size}; a {kind} with min_size={left} gets {what}s that are left"
    if call.whole_groups and (broken := untaken_in_broken_groups(partition, task)):
        message += f"; without whole_groups a claim gets the {broken} rows of groups of which other rows were taken"
    of_call = {"partition_id": call.partition_id, "task": call.task, "cause": "end_of_data"}
    return Refusal(Reason.END_OF_DATA, message, left=left, **of_call)

"""Who wants rows of a task: they get them at once or wait in line, first come first served.

A wish that cannot be met waits at the view of its fields and is met by whatever makes rows ready there: a put, a
release, a reset. What becomes of the rows is the asker's business: this module takes rows out of views and hands them
over, or says why there are none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dataplane_server.core.calls import ClaimRequest, ShardRequest
from dataplane_server.core.names import check_distinct
from dataplane_server.core.partition import Partition
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import Slots
from dataplane_server.core.state import State, draining
from dataplane_server.core.task_states import UNTAKEN, Waiter
from dataplane_server.core.tasks import AnyView, Task

Wish = ClaimRequest | ShardRequest


class Asker(Protocol):
    """Whoever waits for the rows of a wish. session_id: with whose death the wait ends; empty for nobody's."""

    session_id: str

    @property
    def wish(self) -> Wish:
        """What it waits for."""

    @property
    def callers(self) -> int:
        """How many calls wait with it."""

    def receive(self, partition: Partition, slots: Slots, now: float) -> None:
        """Take rows that have just left their view."""

    def fail(self, refusal: Refusal) -> None:
        """Learn that none will come."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    asker: Asker
    task: Task
    view: AnyView


class ClaimLine:
    """Askers that wait, by ticket."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._waiting: dict[int, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._waiting

    @property
    def callers(self) -> int:
        """Calls that wait; several may wait for the rows of one step."""
        return sum(waiting.asker.callers for waiting in self._waiting.values())

    def check(self, wish: Wish) -> tuple[Partition, int]:
        """The partition, and the wanted fields as a mask. Refusal for what can never be met."""
        most = self._state.limits.max_rows_per_call
        if not 1 <= wish.min_size <= wish.batch_size <= most:
            message = (
                f"a claim needs 1 <= min_size <= batch_size <= {most}, "
                f"got min_size {wish.min_size} and batch_size {wish.batch_size}"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=wish.partition_id, task=wish.task)
        check_distinct("required field", wish.required_fields)
        partition = self._state.partition(wish.partition_id)
        partition.task(wish.task)
        return partition, partition.mask(wish.required_fields)

    def take(self, partition: Partition, wish: Wish, mask: int) -> Slots | None:
        """Rows that are ready, now out of their view; None when the wish has to wait."""
        view = partition.task(wish.task).view(mask, wish.whole_groups)
        if view.waiters or view.ready < wish.min_size:
            return None
        return view.first(min(view.ready, wish.batch_size), wish.max_tokens)

    def wait(self, partition: Partition, asker: Asker, mask: int, now: float) -> int:
        """Put an asker in line; its ticket. Refusal when nothing may wait, or nothing more."""
        if self._state.draining:
            raise draining()
        limit = self._state.limits.max_waiting_claims
        if len(self._waiting) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"{limit} claims wait already", max_waiting_claims=limit)
        ticket, wish = self._state.ticket(), asker.wish
        task = partition.task(wish.task)
        view = task.view(mask, wish.whole_groups)
        view.waiters[ticket] = Waiter(ticket, wish.min_size, wish.batch_size, wish.max_tokens, now)
        self._waiting[ticket] = _Waiting(asker, task, view)
        return ticket

    def serve(self, partition: Partition, now: float) -> None:
        """Hand ready rows to those who wait for them, the longest waiting first."""
        for task in partition.tasks.values():
            while (pair := task.next_waiter()) is not None:
                view, waiter = pair
                asker = self.leave(waiter.ticket)
                task.flow.claim_wait_s += asker.callers * max(now - waiter.since, 0.0)
                slots = view.first(min(view.ready, waiter.batch_size), waiter.max_tokens)
                asker.receive(partition, slots, now)
            task.observe(now)

    def leave(self, ticket: int) -> Asker:
        """Take an asker out of the line. Those behind it may be served now: see `serve`."""
        waiting = self._waiting.pop(ticket)
        del waiting.view.waiters[ticket]
        waiting.task.look = None
        return waiting.asker

    # -- ends ----------------------------------------------------------------------------------------------------------

    def fail_waiting_on(self, partition_id: str, refusal: Refusal) -> None:
        """End the waits on a partition that is gone."""
        self._fail(self._waiting_on(partition_id), refusal)

    def fail_orphans(self, partition_id: str) -> None:
        """End the waits for tasks and fields that the partition no longer has; others go on."""
        for ticket in self._waiting_on(partition_id):
            refusal = self._why_not(self._waiting[ticket].asker.wish)
            if refusal is not None:
                self._fail([ticket], refusal)

    def fail_session(self, session_id: str, refusal: Refusal) -> None:
        """End the waits of a session that is gone."""
        self._fail([t for t, waiting in self._waiting.items() if waiting.asker.session_id == session_id], refusal)

    def drain(self) -> None:
        """End all waits."""
        self._fail(list(self._waiting), draining())

    def timeout(self, wish: Wish) -> Refusal:
        """Why a wish was not met in time."""
        partition = self._state.partition(wish.partition_id)
        task = partition.task(wish.task)
        untaken = partition.rows["alive"] & (task.states == UNTAKEN)
        produced = partition.rows["produced"][untaken]
        lacking = {
            name: int(np.count_nonzero((produced & partition.field(name).bit) == 0)) for name in wish.required_fields
        }
        reasons = [f"{count} of them lack field {name!r}" for name, count in lacking.items() if count]
        hidden = int(np.count_nonzero(partition.rows["hidden"][untaken]))
        if hidden:
            reasons.append(f"{hidden} of them belong to groups that are still reserved")
        if task.delayed:
            reasons.append(f"{task.delayed} more are delayed by a release")
        others = task.waiting()
        message = (
            f"partition {wish.partition_id!r}, task {wish.task!r}: {wish.min_size} ready "
            f"{'groups' if wish.whole_groups else 'rows'} wanted; "
            f"{len(produced)} of {len(partition.rows)} resident rows are untaken"
            + "".join(f", {reason}" for reason in reasons)
            + (f"; {others} other claims of the task stand in line, first come first served" if others else "")
        )
        return Refusal(Reason.CLAIM_TIMEOUT, message, partition_id=wish.partition_id, task=wish.task)

    def _waiting_on(self, partition_id: str) -> list[int]:
        return [ticket for ticket, waiting in self._waiting.items() if waiting.asker.wish.partition_id == partition_id]

    def _why_not(self, wish: Wish) -> Refusal | None:
        try:
            self.check(wish)
        except Refusal as refusal:
            return refusal
        return None

    def _fail(self, tickets: Iterable[int], refusal: Refusal) -> None:
        for ticket in tickets:
            if ticket in self._waiting:
                self.leave(ticket).fail(refusal)

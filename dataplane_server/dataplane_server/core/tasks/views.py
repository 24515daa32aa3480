"""The views of a task, one for each kind of claims, and the claims that wait at them, first come first served."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from dataplane_server.core.calls.policies import TaskPolicy
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.rows.group_table import GroupTable
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.eligibility import bounds_of
from dataplane_server.core.tasks.group_view import GROUPED_BYTES, GroupView
from dataplane_server.core.tasks.readiness import Kind
from dataplane_server.core.tasks.task_states import Waiter
from dataplane_server.core.tasks.view import KEY_BYTES, KEYED_BYTES, QUEUED_BYTES, View

MAX_VIEWS = 32
"""Views that a task keeps, and views that may have waiting claims at the same time."""

AnyView = View | GroupView


class Views:
    """The views of one task. state_column: of the rows."""

    def __init__(self, task: str, rows: RowTable, groups: GroupTable, state_column: str) -> None:
        self._task = task
        self._rows = rows
        self._groups = groups
        self._column = state_column
        self._of_kind: OrderedDict[Kind, AnyView] = OrderedDict()  # the one that was used last at the end

    def __iter__(self) -> Iterator[AnyView]:
        return iter(self._of_kind.values())

    def __len__(self) -> int:
        return len(self._of_kind)

    def check(self, kind: Kind) -> None:
        """Raises LIMIT_REACHED if every view has queued claims, or a new view would exceed the bookkeeping budget."""
        if kind in self._of_kind:
            return
        if len(self) >= MAX_VIEWS and all(view.waiters for view in self):
            message = (
                f"task {self._task!r}: claims wait for {MAX_VIEWS} other sets of required fields, filters and orders, "
                "which is the most at the same time (max_views)"
            )
            raise Refusal(Reason.LIMIT_REACHED, message, task=self._task, max_views=MAX_VIEWS)
        queued = QUEUED_BYTES if kind.order == "ready" else KEYED_BYTES + KEY_BYTES
        self._rows.check_column(GROUPED_BYTES if kind.whole_groups else queued)

    def get(self, kind: Kind, policy: TaskPolicy) -> AnyView:
        """The view of a kind of claims, built on first use by one scan of the rows. policy: of the task."""
        if kind not in self._of_kind:
            self._forget_one()
            bounds = bounds_of(self._rows, policy)
            self._of_kind[kind] = (
                GroupView(self._rows, self._groups, self._column, kind, bounds)
                if kind.whole_groups
                else View(self._rows, self._column, kind, bounds)
            )
        self._of_kind.move_to_end(kind)
        return self._of_kind[kind]

    def _forget_one(self) -> None:
        if len(self) < MAX_VIEWS:
            return
        idle = next((kind for kind, view in self._of_kind.items() if not view.waiters), None)
        if idle is not None:
            self._of_kind.pop(idle).close()

    def drop(self, mask: int) -> None:
        """Drop the views of field sets that share a field with mask."""
        for kind in [kind for kind in self._of_kind if kind.mask & mask]:
            self._of_kind.pop(kind).close()

    def close(self) -> None:
        for view in self:
            view.close()

    # -- rows ----------------------------------------------------------------------------------------------------------

    def update(self, slots: Slots) -> None:
        """Fields, tags or the visibility of rows have changed."""
        for view in self._of_kind.values():
            view.update(slots)

    def return_rows(self, slots: Slots) -> None:
        """Rows are untaken again, and first in the queue."""
        for view in self._of_kind.values():
            view.return_rows(slots)

    def remove(self, slots: Slots) -> None:
        """Rows are not untaken any more."""
        for view in self._of_kind.values():
            view.remove(slots)

    def restart(self) -> None:
        """Every row is untaken."""
        for view in self._of_kind.values():
            view.restart()

    def follow(self, policy: TaskPolicy) -> None:
        """The policy is this one from now on, or the weight version is another."""
        bounds = bounds_of(self._rows, policy)
        for view in self._of_kind.values():
            outdated = view.readiness.follow(bounds)
            if outdated is None:
                slots = self._rows.all_slots()
                view.expel(view.readiness.no_longer(slots))
                view.add(slots)
            else:
                view.expel(outdated)

    @property
    def move_with_version(self) -> bool:
        """Whether a claim asks for a staleness."""
        return any(kind.moves_with_version for kind in self._of_kind)

    # -- queued claims -------------------------------------------------------------------------------------------------

    def waiting(self) -> int:
        """How many claims are queued; those of one step count as one."""
        return sum([len(view.waiters) for view in self._of_kind.values()])

    def waits_since(self) -> float | None:
        """When the longest queued claim was queued; None if none is."""
        queues = [view.waiters for view in self._of_kind.values() if view.waiters]
        return min([next(iter(queue.values())).since for queue in queues], default=None)

    def ready_rows(self) -> int | None:
        """Rows that a claim could take now, by the view that was used last; None before the first claim."""
        view = next(reversed(self._of_kind.values()), None)
        return None if view is None else view.ready_rows

    def next_waiter(self) -> tuple[AnyView, Waiter] | None:
        """The longest queued claim among those that are first at their view and can be served."""
        best: tuple[AnyView, Waiter] | None = None
        for view in self._of_kind.values():
            head = next(iter(view.waiters.values()), None)
            if head is not None and view.has(head.amount):
                best = best if best is not None and best[1].number < head.number else (view, head)
        return best

"""One consumer's cursor over the rows of a partition: which rows it has taken, and how each delivery ended.

For one task a row is untaken, claimed, consumed, delayed (given back, but held for a while) or dead (given up). All
changes of that state happen here, each with its entry in `deliveries`, so the two cannot disagree, and rows are counted
by state as they move, so that a look at many tasks costs little. Which of the
untaken rows are ready for a claim is the business of its views; see `view`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from dataplane_server.core.backlog import Backlog
from dataplane_server.core.deliveries import Deliveries, How
from dataplane_server.core.flow import TaskFlow
from dataplane_server.core.group_view import GroupView
from dataplane_server.core.groups import GroupTable
from dataplane_server.core.rows import RowTable, Slots
from dataplane_server.core.task_states import CLAIMED, CONSUMED, DEAD, DELAYED, STATE_NAMES, UNTAKEN, Waiter
from dataplane_server.core.time_in_state import TaskClock, TaskState
from dataplane_server.core.view import View

MAX_VIEWS = 32

AnyView = View | GroupView
ViewKey = tuple[int, bool]
"""The fields of a view, as a mask, and whether it is one of whole groups."""


class Task:
    """The states of all rows for one task. `slots` handed in are of resident rows."""

    def __init__(self, name: str, rows: RowTable, groups: GroupTable) -> None:
        self.name = name
        self.consumed_total = 0
        self.flow = TaskFlow()
        self.deliveries = Deliveries(name, rows)
        self.clock = TaskClock()
        self._rows = rows
        self._groups = groups
        self._column = f"state:{name}"
        self._views: OrderedDict[ViewKey, AnyView] = OrderedDict()
        self._held_until: dict[int, float] = {}  # slot -> end of the delay
        rows.add_column(self._column, np.uint8)
        self.backlog = Backlog(rows, self._column)
        self.look: tuple[float | None, ...] | None = None  # see `figures`
        self._counts = np.zeros(len(STATE_NAMES), np.int64)
        self._counts[UNTAKEN] = len(rows)

    @property
    def states(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """UNTAKEN, CLAIMED, CONSUMED, DELAYED or DEAD for each slot; meaningless where no row lives."""
        return self._rows[self._column]

    def counts(self) -> tuple[int, ...]:
        """Resident rows that are untaken, claimed, consumed, delayed, dead. Rows that a group hides are untaken."""
        return tuple(self._counts.tolist())

    def created(self, rows: int) -> None:
        """So many rows are new."""
        self._counts[UNTAKEN] += rows
        self._rows_changed()

    # -- views ---------------------------------------------------------------------------------------------------------

    @property
    def views(self) -> Iterator[AnyView]:
        return iter(self._views.values())

    def view(self, mask: int, whole_groups: bool = False) -> AnyView:
        """The view of a field set, built on first use by one scan of the rows."""
        key = (mask, whole_groups)
        self.look = None
        if key not in self._views:
            self._forget_one_view()
            self._views[key] = (
                GroupView(self._rows, self._groups, self._column, mask)
                if whole_groups
                else View(self._rows, self._column, mask)
            )
        self._views.move_to_end(key)
        return self._views[key]

    def produced(self, slots: Slots) -> None:
        """Fields or tags of the rows were put, or the rows became visible."""
        self._rows_changed()
        for view in self._views.values():
            view.add(slots)

    def waiting(self) -> int:
        """Claims that wait."""
        return sum([len(view.waiters) for view in self._views.values()])

    def waits_since(self) -> float | None:
        """When the claim began to wait that has waited longest; None when none waits."""
        heads = [next(iter(view.waiters.values())).since for view in self._views.values() if view.waiters]
        return min(heads) if heads else None

    def ready_rows(self) -> int | None:
        """Rows that a claim could take now, by the view that was asked for last; None before the first."""
        view = next(reversed(self._views.values()), None)
        return None if view is None else view.ready_rows

    def next_waiter(self) -> tuple[AnyView, Waiter] | None:
        """Of the views whose head can be served, the one that has waited longest."""
        heads = [(view, head) for view in self._views.values() if (head := view.next_waiter()) is not None]
        return min(heads, key=lambda pair: pair[1].ticket, default=None)

    def drop_views(self, mask: int) -> None:
        """End the views of field sets that share a field with mask."""
        self.look = None
        for key in [key for key in self._views if key[0] & mask]:
            self._views.pop(key).close()

    def _forget_one_view(self) -> None:
        if len(self._views) < MAX_VIEWS:
            return
        idle = next((key for key, view in self._views.items() if not view.waiters), None)
        if idle is not None:
            self._views.pop(idle).close()

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def take(self, slots: Slots, *, consume: bool) -> None:
        """Hand out rows that are untaken, or held for a step; to consume them at once ends their delivery, too."""
        self._move(slots, CLAIMED)
        self._release_hold(slots)
        self._leave_views(slots)
        self.deliveries.begin(slots)
        if consume:
            self.consume(slots)

    def consume(self, slots: Slots) -> None:
        """Claimed rows are done with."""
        self._move(slots, CONSUMED)
        self.consumed_total += len(slots)
        self.deliveries.end(len(slots), "committed")

    def give_back(self, slots: Slots, how: How) -> None:
        """Claimed rows were not used: untaken again, first in line, as if they had not been delivered."""
        self.deliveries.end(len(slots), how)
        self.deliveries.take_back(slots)
        self._return(slots)

    def fail(self, slots: Slots, how: How, reason: str, most: int, held_until: float | None = None) -> Slots:
        """The delivery of claimed rows failed: untaken again, first in line, at once or when the delay is over; dead
        where it was the `most`-th (0: never). Which rows are dead.
        """
        self.deliveries.end(len(slots), how)
        exhausted = self.deliveries.exhausted(slots, most)
        dead = slots[exhausted]
        self._move(dead, DEAD)
        self.deliveries.bury(dead, reason)
        if held_until is None:
            self._return(slots[~exhausted])
        else:
            self._hold(slots[~exhausted], held_until)
        return dead

    def delay(self, slots: Slots, how: How, held_until: float) -> None:
        """Claimed rows were not used: untaken again when the delay is over."""
        self.deliveries.end(len(slots), how)
        self.deliveries.take_back(slots)
        self._hold(slots, held_until)

    def hold(self, slots: Slots) -> None:
        """Keep untaken rows out of line until end_delay(slots, inf)."""
        self._leave_views(slots)
        self._hold(slots, math.inf)

    def is_held(self, slots: Slots, until: float) -> bool:
        """Whether any of the rows is held until just then."""
        return any(self._held_until.get(slot) == until for slot in slots.tolist())

    def end_delay(self, slots: Slots, at: float) -> None:
        """Give back those of the rows that are held until just then; first in line."""
        over = [slot for slot in slots.tolist() if self._held_until.get(slot) == at]
        for slot in over:
            del self._held_until[slot]
        self._return(np.array(over, np.int64))

    @property
    def delayed(self) -> int:
        return len(self._held_until)

    def restore(self, slots: Slots) -> None:
        """Give back rows in whatever state, first in line and in the order given, their deliveries forgotten."""
        self.deliveries.end(int(np.count_nonzero(self.states[slots] == CLAIMED)), "reset")
        self.deliveries.forget(slots)
        self._release_hold(slots)
        self._return(slots)

    def state_of(self, slot: int) -> str:
        """The name of the row's state."""
        return STATE_NAMES[int(self.states[slot])]

    def dead_slots(self) -> Slots:
        """Rows that the task has given up."""
        return np.flatnonzero((self.states == DEAD) & self._rows["alive"])

    # -- ends ----------------------------------------------------------------------------------------------------------

    def forget(self, slots: Slots) -> None:
        """The rows are about to go."""
        self.deliveries.end(int(np.count_nonzero(self.states[slots] == CLAIMED)), "cleared")
        self._counts -= np.bincount(self.states[slots], minlength=len(STATE_NAMES))
        self._rows_changed()
        self.deliveries.forget(slots)
        self._release_hold(slots)
        self._leave_views(slots)

    def reset(self) -> None:
        """Make every row untaken, as a new definition does."""
        self.deliveries.end(int(self._counts[CLAIMED]), "reset")
        self.deliveries.forget_all()
        self._held_until.clear()
        self.states[:] = UNTAKEN
        self._counts[:] = 0
        self._counts[UNTAKEN] = len(self._rows)
        self._rows_changed()
        self.consumed_total = 0
        for view in self._views.values():
            view.restart()

    def close(self) -> None:
        for view in self._views.values():
            view.close()
        self.deliveries.close()
        self._rows.drop_column(self._column)

    # -- who waits for whom --------------------------------------------------------------------------------------------

    def observe(self, now: float) -> None:
        """Note in which state the task is from now on."""
        self.clock.enter(self._state(), now)
        self.look = None

    def _state(self) -> TaskState:
        if self.waiting():
            withheld = self._held_until or self._groups.reserved
            return "waiting_by_policy" if withheld else "waiting_for_producers"
        if self.deliveries.open:
            return "serving"
        ready = any(view.ready for view in self._views.values()) if self._views else len(self._rows) > 0
        return "waiting_for_consumers" if ready else "idle"

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _move(self, slots: Slots, state: int) -> None:
        self._counts -= np.bincount(self.states[slots], minlength=len(STATE_NAMES))
        self._counts[state] += len(slots)
        self.states[slots] = state
        self._rows_changed()

    def _rows_changed(self) -> None:
        self.look = None
        self.backlog.changed()

    def _return(self, slots: Slots) -> None:
        self._move(slots, UNTAKEN)
        for view in self._views.values():
            view.give_back(slots)

    def _hold(self, slots: Slots, until: float) -> None:
        self._move(slots, DELAYED)
        self._held_until.update(dict.fromkeys(slots.tolist(), until))

    def _release_hold(self, slots: Slots) -> None:
        for slot in slots.tolist() if self._held_until else ():
            self._held_until.pop(slot, None)

    def _leave_views(self, slots: Slots) -> None:
        for view in self._views.values():
            view.remove(slots)

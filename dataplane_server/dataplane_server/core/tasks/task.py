"""The cursor of one consumer over the rows of a partition: which rows it has taken, and how each delivery ended.

For one task a row is untaken, claimed, consumed, delayed (released, but held back for a while) or dead (given up):

    untaken ──take──> claimed ──consume──────────> consumed
       ^                 ├──return_unused────────> untaken, first in the queue
       │                 ├──fail─────────────────> untaken, delayed or, at max_deliveries, dead
       │                 └──delay────────────────> delayed
       └──end_delay, restore──  delayed, consumed, dead

Every change of that state is in this file, with its entry in `deliveries`, so the two cannot disagree. A method that
changes something adds the task to `changed`, for `core.turn`. Which untaken rows are ready, `tasks.view` decides.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from dataplane_server.core.calls.filters import asks_staleness, filter_bytes
from dataplane_server.core.calls.names import UNKNOWN_VERSION
from dataplane_server.core.calls.policies import TaskPolicy
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import BatchUnit, BoolArray, Slots
from dataplane_server.core.rows.bookkeeping import DELAY_BYTES
from dataplane_server.core.rows.group_table import GroupTable
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.deliveries import Deliveries, How
from dataplane_server.core.tasks.eligibility import Bounds, all_stale, bounds_of, excluded, rejected, stale
from dataplane_server.core.tasks.group_view import GROUPED_BYTES, GroupView
from dataplane_server.core.tasks.readiness import Kind
from dataplane_server.core.tasks.task_clock import TaskClock
from dataplane_server.core.tasks.task_states import (
    CLAIMED,
    CONSUMED,
    DEAD,
    DELAYED,
    STATE_NAMES,
    UNTAKEN,
    TaskCounters,
    TaskState,
    Waiter,
)
from dataplane_server.core.tasks.view import KEYED_BYTES, View

MAX_VIEWS = 32
"""Views that a task keeps, and views that may have waiting claims at the same time."""

AnyView = View | GroupView

_NONE = np.iinfo(np.int64).max


class Task:
    """The states of all rows for one task. Arguments named `slots` are of resident rows. changed: the tasks that the
    current turn has changed, in order. policy: changed by `follow`. suspects: rows that the policy may have to drop;
    the turn takes them. figures: see `stats.figures`.
    """

    def __init__(
        self, name: str, partition_id: str, rows: RowTable, groups: GroupTable, changed: dict[Task, None]
    ) -> None:
        self.name = name
        self.partition_id = partition_id
        self.policy = TaskPolicy()
        self.suspects: list[Slots] = []
        self.consumed_total = 0
        self._taken_before = 0  # committed or claimed when the weight version moved
        self.counters = TaskCounters()
        self.deliveries = Deliveries(name, rows)
        self.clock = TaskClock()
        self.figures: tuple[float | None, ...] | None = None
        self._rows = rows
        self._groups = groups
        self._changed = changed
        self.uncommitted: dict[int, int] = {}  # shards that are not committed, by step that is remembered
        self._column = f"state:{name}"
        self._again = f"again:{name}"
        self._views: OrderedDict[Kind, AnyView] = OrderedDict()
        self._held_until: dict[int, float] = {}  # slot -> end of the delay
        rows.add_column(self._column, np.uint8)
        rows.add_column(self._again, np.bool_)
        self._counts = np.zeros(len(STATE_NAMES), np.int64)
        self._counts[UNTAKEN] = len(rows)

    @property
    def states(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """UNTAKEN, CLAIMED, CONSUMED, DELAYED or DEAD for each slot; meaningless for slots without a row."""
        return self._rows[self._column]

    def counts(self) -> tuple[int, ...]:
        """Resident rows that are untaken, claimed, consumed, delayed, dead. Rows that a group hides are untaken."""
        return tuple(self._counts.tolist())

    def created(self, rows: int) -> None:
        """The partition has `rows` more rows."""
        self._counts[UNTAKEN] += rows
        self._changed[self] = None

    def oldest_untaken(self) -> tuple[int | None, int | None]:
        """The lowest generation and the lowest weight version among untaken rows; None if there is none. O(rows)."""
        rows = self._rows
        untaken = rows[self._column] == UNTAKEN
        untaken &= rows["alive"]
        generation = int(np.minimum.reduce(rows["generation"], where=untaken, initial=_NONE))
        version = UNKNOWN_VERSION
        if rows.newest_weight_version is not None:
            version = int(np.minimum.reduce(rows["weight_version"], where=untaken, initial=UNKNOWN_VERSION))
        return None if generation == _NONE else generation, None if version == UNKNOWN_VERSION else version

    # -- views ---------------------------------------------------------------------------------------------------------

    @property
    def views(self) -> Iterator[AnyView]:
        return iter(self._views.values())

    def check_view(self, kind: Kind) -> None:
        """Raises LIMIT_REACHED if every view has queued claims, or a new view would exceed the bookkeeping budget."""
        if kind in self._views:
            return
        if len(self._views) >= MAX_VIEWS and all(view.waiters for view in self._views.values()):
            message = (
                f"task {self.name!r}: claims wait for {MAX_VIEWS} other sets of required fields, filters and orders, "
                "which is the most at the same time (max_views)"
            )
            raise Refusal(Reason.LIMIT_REACHED, message, task=self.name, max_views=MAX_VIEWS)
        self._rows.check_column(GROUPED_BYTES if kind.whole_groups else KEYED_BYTES)

    def view(self, kind: Kind) -> AnyView:
        """The view of a kind of claims, built on first use by one scan of the rows."""
        self._changed[self] = None
        if kind not in self._views:
            self._forget_one_view()
            self._views[kind] = (
                GroupView(self._rows, self._groups, self._column, kind, self._bounds)
                if kind.whole_groups
                else View(self._rows, self._column, kind, self._bounds)
            )
        self._views.move_to_end(kind)
        return self._views[kind]

    def produced(self, slots: Slots) -> None:
        """Fields or tags of the rows were put, or the rows became visible."""
        self._changed[self] = None
        for view in self._views.values():
            view.update(slots)
        self.suspect(slots)

    def note_put_again(self, slots: Slots) -> None:
        """Rows get values in place of those that they have; the task does not get those again that it has consumed."""
        self._rows[self._again][slots] |= self.states[slots] == CONSUMED

    @property
    def put_again(self) -> BoolArray:
        """The rows that were put again after the task consumed them."""
        again: BoolArray = self._rows[self._again] & self._rows["alive"]
        return again

    # -- policy --------------------------------------------------------------------------------------------------------

    @property
    def _bounds(self) -> Bounds:
        return bounds_of(self._rows, self.policy)

    def begin_version(self) -> None:
        """The partition has another weight version."""
        self._taken_before = self.deliveries.ended.get("committed", 0) + int(self._counts[CLAIMED])

    @property
    def taken_in_version(self) -> int:
        """Rows that the task has taken of the present weight version and is done with."""
        return max(0, self.deliveries.ended.get("committed", 0) - self._taken_before)

    @property
    def moves_with_version(self) -> bool:
        """Whether the policy, or a claim, asks for a staleness."""
        return asks_staleness(self.policy.where) or any(kind.moves_with_version for kind in self._views)

    def follow(self, policy: TaskPolicy) -> None:
        """The policy is this one from now on, or the partition has another weight version."""
        self._changed[self] = None
        self._rows.keep(filter_bytes(policy.where) - filter_bytes(self.policy.where))
        before, self.policy = self.policy, policy
        for view in self._views.values():
            outdated = view.readiness.follow(self._bounds)
            if outdated is None:
                slots = self._rows.all_slots()
                view.expel(view.readiness.no_longer(slots))
                view.add(slots)
            else:
                view.expel(outdated)
        only_stale = policy == before and not asks_staleness(policy.where)
        self.suspect(np.flatnonzero(all_stale(self._rows, self.policy) if only_stale else self._rows["alive"]))

    def is_stale(self, slots: Slots) -> BoolArray:
        """Which rows are staler than the task allows, or of an unknown version."""
        return stale(self._rows, self.policy, slots)

    def is_excluded(self, slots: Slots) -> BoolArray:
        """Which rows do not fit the filter of the policy."""
        return excluded(self._rows, self.policy, slots)

    def is_rejected(self, slots: Slots) -> BoolArray:
        """Which rows do not fit the filter of the policy, and have all that it names."""
        return rejected(self._rows, self.policy, slots)

    def stale_rows(self) -> int:
        """Untaken rows that are stale. Costs O(rows) if there is a bound."""
        if self.policy.bound is None:
            return 0
        return int(np.count_nonzero(all_stale(self._rows, self.policy) & (self.states == UNTAKEN)))

    def excluded_rows(self) -> int:
        """Untaken rows that are rejected and not stale. Costs O(rows) if the policy has a filter."""
        if not self.policy.where:
            return 0
        slots = np.flatnonzero(self._rows["alive"] & (self.states == UNTAKEN))
        return int(np.count_nonzero(self.is_rejected(slots) & ~self.is_stale(slots)))

    def suspect(self, slots: Slots) -> None:
        """Rows that the policy may have to drop: they came, came back, or are others by their tags."""
        if self.policy.drops_stale or self.policy.drops_excluded:
            self.suspects.append(slots)
            self._changed[self] = None

    # -- queued claims -------------------------------------------------------------------------------------------------

    def waiting(self) -> int:
        """How many claims are queued; those of one step count as one."""
        return sum([len(view.waiters) for view in self._views.values()])

    def waits_since(self) -> float | None:
        """When the longest queued claim was queued; None if none is."""
        heads = [next(iter(view.waiters.values())).since for view in self._views.values() if view.waiters]
        return min(heads) if heads else None

    def ready_rows(self) -> int | None:
        """Rows that a claim could take now, by the view that was used last; None before the first claim."""
        view = next(reversed(self._views.values()), None)
        return None if view is None else view.ready_rows

    @property
    def is_ending(self) -> bool:
        """Whether no more rows will come: the partition is closed, and no group is reserved."""
        return self._rows.closed and not self._groups.reserved

    def left(self, whole_groups: bool, unit: BatchUnit) -> int:
        """How many rows the task may still get: they are neither consumed nor dead, nor untaken and stale or rejected.
        whole_groups: how many groups of such rows only, or how many rows of such groups; a row outside of groups counts
        as a group. In O(rows) for whole groups, and if there is a bound or filter.
        """
        untaken, claimed, _, delayed, _ = self.counts()
        if not whole_groups:
            return untaken + claimed + delayed - self.stale_rows() - self.excluded_rows()
        slots = self._rows.all_slots()
        gone = np.isin(self.states[slots], (CONSUMED, DEAD))
        gone |= (self.states[slots] == UNTAKEN) & (self.is_stale(slots) | self.is_rejected(slots))
        numbers = self._rows["group"][slots]
        broken = np.unique(numbers[gone & (numbers > 0)])
        alone = int(np.count_nonzero(~gone & (numbers == 0)))
        if unit == "rows":
            return alone + int(np.count_nonzero((numbers > 0) & ~np.isin(numbers, broken)))
        return alone + len(self._groups) - len(broken)

    def untaken_in_broken_groups(self) -> int:
        """Untaken rows of groups of which the task has taken other rows. Costs O(rows)."""
        slots = self._rows.all_slots()
        numbers, untaken = self._rows["group"][slots], self.states[slots] == UNTAKEN
        return int(np.count_nonzero(untaken & (numbers > 0) & np.isin(numbers, numbers[~untaken])))

    def next_waiter(self) -> tuple[AnyView, Waiter] | None:
        """The longest queued claim among those that are first at their view and can be served."""
        best: tuple[AnyView, Waiter] | None = None
        for view in self._views.values():
            if view.waiters and (head := view.next_waiter()) is not None:
                best = best if best is not None and best[1].number < head.number else (view, head)
        return best

    def remove_waiter(self, view: AnyView, number: int) -> None:
        """A claim leaves the queue of a view."""
        del view.waiters[number]
        self._changed[self] = None

    def drop_views(self, mask: int) -> None:
        """Drop the views of field sets that share a field with mask."""
        self._changed[self] = None
        for key in [key for key in self._views if key.mask & mask]:
            self._views.pop(key).close()

    def _forget_one_view(self) -> None:
        if len(self._views) < MAX_VIEWS:
            return
        idle = next((key for key, view in self._views.items() if not view.waiters), None)
        if idle is not None:
            self._views.pop(idle).close()

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def take(self, slots: Slots, *, consume: bool) -> None:
        """Deliver rows that are untaken, or held for a step. consume: the delivery ends at once."""
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

    def return_unused(self, slots: Slots, how: How) -> None:
        """Claimed rows become untaken, first in the queue, as if they had not been delivered."""
        self.deliveries.end(len(slots), how)
        self.deliveries.take_back(slots)
        self._return(slots)

    def fail(self, slots: Slots, how: How, reason: str, most: int, held_until: float | None = None) -> Slots:
        """The delivery of claimed rows failed. They become untaken, first in the queue, at once or after the delay.
        Rows whose delivery was the `most`-th (0: no limit) become dead. Returns the dead rows.
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
        """Claimed rows were not used. They become untaken when the delay is over."""
        self.deliveries.end(len(slots), how)
        self.deliveries.take_back(slots)
        self._hold(slots, held_until)

    def hold(self, slots: Slots) -> None:
        """Keep untaken rows out of the queue until end_delay(slots, inf)."""
        self._leave_views(slots)
        self._hold(slots, math.inf)

    def is_held(self, slots: Slots, until: float) -> bool:
        """Whether any of the rows is held until exactly then."""
        return any(self._held_until.get(slot) == until for slot in slots.tolist())

    def end_delay(self, slots: Slots, at: float) -> None:
        """Return those of the rows that are held until exactly then, first in the queue."""
        over = [slot for slot in slots.tolist() if self._held_until.get(slot) == at]
        for slot in over:
            del self._held_until[slot]
        self._rows.keep(-DELAY_BYTES * len(over))
        self._return(np.array(over, np.int64))

    @property
    def next_return(self) -> float:
        """When the first delay ends; inf if none does by itself. O(delayed rows)."""
        return min(self._held_until.values(), default=math.inf)

    def restore(self, slots: Slots) -> None:
        """Return rows in any state, first in the queue and in the given order. Their deliveries are forgotten."""
        self.deliveries.end(int(np.count_nonzero(self.states[slots] == CLAIMED)), "reset")
        self.deliveries.forget(slots)
        self._release_hold(slots)
        self._rows[self._again][slots] = False
        self._return(slots)

    def state_of(self, slot: int) -> str:
        """The name of the row's state."""
        return STATE_NAMES[int(self.states[slot])]

    def dead_slots(self) -> Slots:
        """Rows that the task has given up."""
        return np.flatnonzero((self.states == DEAD) & self._rows["alive"])

    @property
    def kept_bytes(self) -> int:
        """Memory of delays, of reasons of dead rows, and of the policy's filter."""
        kept = DELAY_BYTES * len(self._held_until) + filter_bytes(self.policy.where)
        return kept + self.deliveries.kept_bytes

    # -- ends ----------------------------------------------------------------------------------------------------------

    def forget(self, slots: Slots) -> None:
        """The rows are about to be removed."""
        self.deliveries.end(int(np.count_nonzero(self.states[slots] == CLAIMED)), "cleared")
        self._counts -= np.bincount(self.states[slots], minlength=len(STATE_NAMES))
        self._changed[self] = None
        self.deliveries.forget(slots)
        self._release_hold(slots)
        self._leave_views(slots)

    def reset(self) -> None:
        """Make every row untaken, as a new definition does."""
        self.deliveries.end(int(self._counts[CLAIMED]), "reset")
        self.deliveries.forget_all()
        self._rows.keep(-DELAY_BYTES * len(self._held_until))
        self._held_until.clear()
        self.states[:] = UNTAKEN
        self._rows[self._again][:] = False
        self._counts[:] = 0
        self._counts[UNTAKEN] = len(self._rows)
        self._changed[self] = None
        self.consumed_total = 0
        for view in self._views.values():
            view.restart()
        self.suspect(np.flatnonzero(self._rows["alive"]))

    def close(self) -> None:
        for view in self._views.values():
            view.close()
        self.deliveries.close()
        self._rows.keep(-DELAY_BYTES * len(self._held_until) - filter_bytes(self.policy.where))
        self._rows.drop_column(self._column)
        self._rows.drop_column(self._again)

    # -- steps of data-parallel ranks ----------------------------------------------------------------------------------

    @property
    def newest_step(self) -> int | None:
        """The greatest step that is remembered; None if there is none."""
        return max(self.uncommitted, default=None)

    @property
    def next_step(self) -> int:
        """The first step that is remembered and of which a shard is not committed; else the one after the newest."""
        begun = min([step for step, shards in self.uncommitted.items() if shards > 0], default=None)
        return 1 + max(self.uncommitted, default=-1) if begun is None else begun

    # -- who waits for whom --------------------------------------------------------------------------------------------

    def observe(self, now: float) -> None:
        """Note the state that the task is in from now on."""
        self.clock.enter(self._state(), now)

    def _state(self) -> TaskState:
        ready = False
        for view in self._views.values():
            if view.waiters:
                return "waiting"
            ready = ready or bool(view.ready)
        if self._counts[CLAIMED]:
            return "serving"
        return "waiting_for_consumers" if ready or (len(self._rows) and not self._views) else "idle"

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _move(self, slots: Slots, state: int) -> None:
        self._counts -= np.bincount(self.states[slots], minlength=len(STATE_NAMES))
        self._counts[state] += len(slots)
        self.states[slots] = state
        self._changed[self] = None

    def _return(self, slots: Slots) -> None:
        self._move(slots, UNTAKEN)
        for view in self._views.values():
            view.return_rows(slots)
        self.suspect(slots)

    def _hold(self, slots: Slots, until: float) -> None:
        self._move(slots, DELAYED)
        self._held_until.update(dict.fromkeys(slots.tolist(), until))
        self._rows.keep(DELAY_BYTES * len(slots))

    def _release_hold(self, slots: Slots) -> None:
        before = len(self._held_until)
        for slot in slots.tolist() if before else ():
            self._held_until.pop(slot, None)
        self._rows.keep(DELAY_BYTES * (len(self._held_until) - before))

    def _leave_views(self, slots: Slots) -> None:
        for view in self._views.values():
            view.remove(slots)

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

import numpy as np

from dataplane_server.core.calls.filters import asks, filter_bytes
from dataplane_server.core.calls.policies import TaskPolicy
from dataplane_server.core.calls.values import BoolArray, Slots
from dataplane_server.core.rows.bookkeeping import DELAY_BYTES
from dataplane_server.core.rows.group_table import GroupTable
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.deliveries import CLAIMED_BYTES, Deliveries, How
from dataplane_server.core.tasks.eligibility import all_stale, excluded, rejected, stale
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
)
from dataplane_server.core.tasks.views import AnyView, Views

TASK_BYTES = 4 + CLAIMED_BYTES
"""Of a row: its columns."""


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
        self._taken_before = 0  # committed or claimed when the weight version moved, less what came back of the latter
        self.counters = TaskCounters()
        self.deliveries = Deliveries(name, rows)
        self.clock = TaskClock()
        self.figures: tuple[float | None, ...] | None = None
        self._rows = rows
        self._changed = changed
        self.uncommitted: dict[int, int] = {}  # shards that are not committed, by step that is remembered
        self._column = f"state:{name}"
        self._again = f"again:{name}"
        self._held_until: dict[int, float] = {}  # slot -> end of the delay
        self.views = Views(name, rows, groups, self._column)
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

    # -- views ---------------------------------------------------------------------------------------------------------

    def view(self, kind: Kind) -> AnyView:
        """The view of a kind of claims; see `Views.get`."""
        self._changed[self] = None
        return self.views.get(kind, self.policy)

    def produced(self, slots: Slots) -> None:
        """Fields or tags of the rows were put, or the rows became visible."""
        self._changed[self] = None
        self.views.update(slots)
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

    def begin_version(self) -> None:
        """The partition has another weight version, or begins anew: no row has been taken of it."""
        self._taken_before = self.deliveries.ended.get("committed", 0) + int(self._counts[CLAIMED])

    @property
    def taken_in_version(self) -> int:
        """Rows that the task has taken of the present weight version and is done with."""
        return max(0, self.deliveries.ended.get("committed", 0) - self._taken_before)

    @property
    def moves_with_version(self) -> bool:
        """Whether the policy, or a claim, asks for a staleness."""
        return asks(self.policy.where, "staleness") or self.views.move_with_version

    def follow(self, policy: TaskPolicy) -> None:
        """The policy is this one from now on, or the partition has another weight version."""
        self._changed[self] = None
        self._rows.keep(filter_bytes(policy.where) - filter_bytes(self.policy.where))
        before, self.policy = self.policy, policy
        self.views.follow(policy)
        only_stale = policy == before and not asks(policy.where, "staleness")
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

    def suspect(self, slots: Slots) -> None:
        """Rows that the policy may have to drop: they came, came back, or are others by their tags."""
        if "drop" in (self.policy.when_stale, self.policy.when_excluded):
            self.suspects.append(slots)
            self._changed[self] = None

    # -- queued claims -------------------------------------------------------------------------------------------------

    def remove_waiter(self, view: AnyView, number: int) -> None:
        del view.waiters[number]
        self._changed[self] = None

    def drop_views(self, mask: int) -> None:
        """Drop the views of field sets that share a field with mask."""
        self._changed[self] = None
        self.views.drop(mask)

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def take(self, slots: Slots, *, consume: bool) -> None:
        """Deliver rows that are untaken, or held for a step. consume: the delivery ends at once."""
        self._move(slots, CLAIMED)
        self._release_hold(slots)
        self.views.remove(slots)
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
        self._end(len(slots), how)
        self.deliveries.take_back(slots)
        self._return(slots)

    def fail(self, slots: Slots, how: How, reason: str, most: int, held_until: float | None = None) -> Slots:
        """The delivery of claimed rows failed. They become untaken, first in the queue, at once or after the delay.
        Rows whose delivery was the `most`-th (0: no limit) become dead. Returns the dead rows.
        """
        self._end(len(slots), how)
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
        self._end(len(slots), how)
        self.deliveries.take_back(slots)
        self._hold(slots, held_until)

    def hold(self, slots: Slots) -> None:
        """Keep untaken rows out of the queue until end_delay(slots, inf)."""
        self.views.remove(slots)
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
        self._end(int(np.count_nonzero(self.states[slots] == CLAIMED)), "reset")
        self.deliveries.forget(slots)
        self._release_hold(slots)
        self._rows[self._again][slots] = False
        self._return(slots)

    def state_of(self, slot: int) -> str:
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
        self._end(int(np.count_nonzero(self.states[slots] == CLAIMED)), "cleared")
        self._counts -= np.bincount(self.states[slots], minlength=len(STATE_NAMES))
        self._changed[self] = None
        self.deliveries.forget(slots)
        self._release_hold(slots)
        self.views.remove(slots)

    def reset(self) -> None:
        """Make every row untaken, as a new definition does."""
        self._end(int(self._counts[CLAIMED]), "reset")
        self.deliveries.forget_all()
        self._rows.keep(-DELAY_BYTES * len(self._held_until))
        self._held_until.clear()
        self.states[:] = UNTAKEN
        self._rows[self._again][:] = False
        self._counts[:] = 0
        self._counts[UNTAKEN] = len(self._rows)
        self._changed[self] = None
        self.consumed_total = 0
        self.begin_version()
        self.views.restart()
        self.suspect(np.flatnonzero(self._rows["alive"]))

    def close(self) -> None:
        self.views.close()
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
        for view in self.views:
            if view.waiters:
                return "waiting"
            ready = ready or bool(view.ready)
        if self._counts[CLAIMED]:
            return "serving"
        return "waiting_for_consumers" if ready or (len(self._rows) and not len(self.views)) else "idle"

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _move(self, slots: Slots, state: int) -> None:
        self._counts -= np.bincount(self.states[slots], minlength=len(STATE_NAMES))
        self._counts[state] += len(slots)
        self.states[slots] = state
        self._changed[self] = None

    def _end(self, rows: int, how: How) -> None:
        """Deliveries have ended without a commit. Those from before the weight version moved are taken to end first."""
        self.deliveries.end(rows, how)
        committed = self.deliveries.ended.get("committed", 0)
        if self._taken_before > committed:
            self._taken_before = max(committed, self._taken_before - rows)

    def _return(self, slots: Slots) -> None:
        self._move(slots, UNTAKEN)
        self.views.return_rows(slots)
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

"""Cursors: which rows a task has taken, and which are ready for it.

For one task a row is untaken, claimed or consumed. Claims name the fields they need, so readiness belongs to a pair
of task and field set: a *view*. A view keeps its ready rows in a queue, in the order in which they became ready, and
learns of every change of a row; a claim therefore pops rows and never scans the partition. Rows that were ready
before a view was first asked for come in order of arrival; rows that a claim gave back come first.

Waiting claims queue at their view, first come first served. A view with nobody waiting may be forgotten and rebuilt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dataplane_server.core.columns import Int64Array
from dataplane_server.core.ready_queue import ReadyQueue
from dataplane_server.core.rows import RowTable, Slots

UNTAKEN, CLAIMED, CONSUMED = 0, 1, 2
MAX_VIEWS = 32
_COMPACT_ABOVE = 1024
_LOOK = 16
_SLOT_BITS = 31
_SLOT = (1 << _SLOT_BITS) - 1


@dataclass(frozen=True, slots=True)
class Waiter:
    """A claim that waits: its place in the order of arrival and the rows it asks for."""

    ticket: int
    min_size: int
    batch_size: int


class View:
    """Rows of one task in which all fields of `mask` are produced and which the task has not taken."""

    def __init__(self, rows: RowTable, state_column: str, mask: int) -> None:
        self.mask = np.uint64(mask)
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.ready = 0
        self._rows = rows
        self._state_column = state_column
        self._queue = ReadyQueue()  # generation and slot of each row in one int; those no longer ready are skipped
        self._column = f"ready:{state_column}:{mask}"
        rows.add_column(self._column, np.bool_)
        self.add(rows.all_slots())

    def add(self, slots: Slots) -> None:
        """Take in those of the rows that are ready and not yet in the queue."""
        self._queue.append(self._enter(slots))

    def give_back(self, slots: Slots) -> None:
        """Like add, but ahead of all rows that wait."""
        self._queue.prepend(self._enter(slots))

    def remove(self, slots: Slots) -> None:
        """Forget rows that were taken or cleared."""
        column = self._rows[self._column]
        self.ready -= int(np.count_nonzero(column[slots]))
        column[slots] = False
        if len(self._queue) > 2 * self.ready + _COMPACT_ABOVE:
            entries = self._queue.first(len(self._queue))
            kept = entries[self._standing(entries, len(entries))]
            self._queue.clear()
            self._queue.append(kept)

    def restart(self) -> None:
        """Queue all ready rows anew, in order of arrival."""
        self._rows[self._column][:] = False
        self._queue.clear()
        self.ready = 0
        self.add(self._rows.all_slots())

    def first(self, count: int) -> Slots:
        """Pop the first `count` ready rows, of which there must be so many; the caller marks them taken."""
        column = self._rows[self._column]
        taken: list[Slots] = []
        missing = count
        while missing:
            entries = self._queue.first(max(missing, _LOOK))
            standing = self._standing(entries, missing)
            missing -= len(standing)
            slots = entries[standing] & _SLOT
            column[slots] = False  # at once: a row given back earlier may stand in the queue once more
            taken.append(slots)
            self._queue.drop(len(entries) if missing else int(standing[-1]) + 1)
        self.ready -= count
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def next_waiter(self) -> Waiter | None:
        """The waiter at the head, if enough rows are ready for it."""
        head = next(iter(self.waiters.values()), None)
        return head if head is not None and self.ready >= head.min_size else None

    def queued(self) -> list[int]:
        """Slots in the queue, in order."""
        entries = self._queue.first(len(self._queue))
        slots: list[int] = (entries[self._standing(entries, len(entries))] & _SLOT).tolist()
        return slots

    def close(self) -> None:
        self._rows.drop_column(self._column)

    def _is_ready(self, slots: Slots) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        produced = (self._rows["produced"][slots] & self.mask) == self.mask
        return np.asarray(produced & (self._rows[self._state_column][slots] == UNTAKEN))

    def _standing(self, entries: Int64Array, most: int) -> Int64Array:
        """Positions of the first `most` entries whose rows are still ready, each row once."""
        slots = entries & _SLOT
        ready = self._rows[self._column][slots] & (self._rows.stamp(slots) == entries >> _SLOT_BITS)
        positions: Int64Array = ready.nonzero()[0]
        if most > 1:
            in_order = np.sort(slots[positions[:most]])
            if np.count_nonzero(in_order[1:] == in_order[:-1]):
                positions = positions[np.sort(np.unique(slots[positions], return_index=True)[1])]
        return positions[:most]

    def _enter(self, slots: Slots) -> Int64Array:
        """Mark those of the rows that are ready and not yet in the queue as being in it; their entries."""
        column = self._rows[self._column]
        fresh = slots[self._is_ready(slots) & ~column[slots]]
        column[fresh] = True
        self.ready += len(fresh)
        entries: Int64Array = (self._rows.stamp(fresh).astype(np.int64) << _SLOT_BITS) | fresh
        return entries


class Task:
    """One consumer's cursor over the rows of a partition."""

    def __init__(self, name: str, rows: RowTable) -> None:
        self.name = name
        self.consumed_total = 0
        self._rows = rows
        self._column = f"state:{name}"
        self._views: OrderedDict[int, View] = OrderedDict()
        rows.add_column(self._column, np.uint8)

    @property
    def states(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """UNTAKEN, CLAIMED or CONSUMED for each slot; meaningless where no row lives."""
        return self._rows[self._column]

    @property
    def views(self) -> Iterator[View]:
        return iter(self._views.values())

    def view(self, mask: int) -> View:
        """The view of a field set, built on first use by one scan of the rows."""
        if mask not in self._views:
            self._forget_one_view()
            self._views[mask] = View(self._rows, self._column, mask)
        self._views.move_to_end(mask)
        return self._views[mask]

    def produced(self, slots: Slots) -> None:
        """Fields of the rows were produced."""
        for view in self._views.values():
            view.add(slots)

    def take(self, slots: Slots, state: int) -> None:
        """Mark untaken rows as claimed or consumed."""
        self.states[slots] = state
        self.forget(slots)
        if state == CONSUMED:
            self.consumed_total += len(slots)

    def consume(self, slots: Slots) -> None:
        """Mark claimed rows as consumed."""
        self.states[slots] = CONSUMED
        self.consumed_total += len(slots)

    def give_back(self, slots: Slots) -> None:
        """Make claimed rows untaken again, first in line."""
        self.states[slots] = UNTAKEN
        for view in self._views.values():
            view.give_back(slots)

    def forget(self, slots: Slots) -> None:
        """The rows are gone from every view."""
        for view in self._views.values():
            view.remove(slots)

    def reset(self) -> None:
        """Make every row untaken."""
        self.states[:] = UNTAKEN
        self.consumed_total = 0
        for view in self._views.values():
            view.restart()

    def counts(self) -> tuple[int, int, int]:
        """Resident rows that are untaken, claimed, consumed."""
        counts = np.bincount(self.states[self._rows["alive"]], minlength=3)
        return int(counts[UNTAKEN]), int(counts[CLAIMED]), int(counts[CONSUMED])

    def waiting(self) -> int:
        return sum(len(view.waiters) for view in self._views.values())

    def next_waiter(self) -> tuple[View, Waiter] | None:
        """Of the views whose head can be served, the one that has waited longest."""
        heads = [(view, head) for view in self._views.values() if (head := view.next_waiter()) is not None]
        return min(heads, key=lambda pair: pair[1].ticket, default=None)

    def drop_views(self, mask: int) -> None:
        """End the views of field sets that share a field with mask."""
        for key in [key for key in self._views if key & mask]:
            self._views.pop(key).close()

    def close(self) -> None:
        for view in self._views.values():
            view.close()
        self._rows.drop_column(self._column)

    def _forget_one_view(self) -> None:
        if len(self._views) < MAX_VIEWS:
            return
        idle = next((mask for mask, view in self._views.items() if not view.waiters), None)
        if idle is not None:
            self._views.pop(idle).close()

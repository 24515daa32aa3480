"""Groups of a task that are ready to be claimed whole: every remaining row of the group is ready, as `view` defines it.

It has the methods of `view.View`, but queues groups, in the order in which they became complete or that of a key;
released groups come first. It counts the queued groups, and their rows. A row without a group counts as a group. A
queued group of which rows are cleared keeps its place; a clear can also make a group complete.

An entry of the queue is one number: the slot of a single row, or the negative number of a group.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.group_table import GroupTable
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.eligibility import Bounds
from dataplane_server.core.tasks.queues import GroupQueue, KeyedGroupQueue
from dataplane_server.core.tasks.readiness import Kind, Readiness
from dataplane_server.core.tasks.task_states import Amount, Waiter
from dataplane_server.core.tasks.view import within_tokens

_MOST_ROWS = 1 << 16
"""Most rows in one grant; a grant has at least one group, however large."""
GROUPED_BYTES = 100
"""Of a row without a group in the queue."""


class GroupView:
    """The groups of one task whose remaining rows are all ready for claims of one kind. bounds: see `Readiness`."""

    def __init__(self, rows: RowTable, groups: GroupTable, state_column: str, kind: Kind, bounds: Bounds) -> None:
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.ready_rows = 0  # of the queued groups
        self.readiness = Readiness(rows, state_column, kind, bounds, GROUPED_BYTES)
        self._rows = rows
        self._groups = groups
        self._queue: GroupQueue | KeyedGroupQueue = GroupQueue() if kind.order == "ready" else KeyedGroupQueue()
        self._ready_rows: dict[int, int] = {}  # by group number, if there are any
        self.add(rows.all_slots())

    @property
    def ready(self) -> int:
        """How many groups are queued."""
        return len(self._queue)

    def add(self, slots: Slots) -> None:
        """Note the rows that are ready, and queue the groups that this completes."""
        complete = self._completed(slots)
        self._queue.append(complete, self._keys(complete))

    def return_rows(self, slots: Slots) -> None:
        """As add, but ahead of all queued groups."""
        complete = self._completed(slots)
        self._queue.prepend(complete, self._keys(complete))

    def update(self, slots: Slots) -> None:
        """Rows have other fields, tags or a version than before: queue the groups that are complete, and remove those
        that are not any more. Groups whose key has changed are queued anew.
        """
        moved: set[int] = set()
        if self.readiness.can_change:
            self.remove(self.readiness.no_longer(slots))
            if isinstance(self._queue, KeyedGroupQueue):
                moved = self._take_moved(self._queue, slots)
        come = self._completed(slots)
        if moved:
            moved.update(come)
            come = [entry for entry in self._entries(slots) if entry in moved]
        self._queue.append(come, self._keys(come))

    def _take_moved(self, queue: KeyedGroupQueue, slots: Slots) -> set[int]:
        """Take the groups with these rows whose keys have changed out of the queue. Returns their entries."""
        queued = [entry for entry in self._entries(slots) if entry in queue]
        moved = {entry for entry, key in zip(queued, self._keys(queued), strict=True) if queue.key(entry) != key}
        for entry in moved:
            queue.discard(entry)
        return moved

    def _entries(self, slots: Slots) -> list[int]:
        """The entries of the rows and their groups in the queue, in this order."""
        numbers = self._rows["group"][slots]
        return list(dict.fromkeys(np.where(numbers > 0, -numbers, slots).tolist()))

    def remove(self, slots: Slots) -> None:
        """Remove rows that were taken, or are about to be removed and no longer count in their groups."""
        column, numbers = self.readiness.marked, self._rows["group"][slots]
        were_in = column[slots]
        column[slots] = False
        for slot in slots[were_in & (numbers == 0)].tolist():
            self._queue.discard(slot)
            self.ready_rows -= 1
        grouped = numbers > 0
        found, first, position = np.unique(numbers[grouped], return_index=True, return_inverse=True)
        lost = np.bincount(position, weights=were_in[grouped], minlength=len(found)).astype(np.int64)
        order = first.argsort()
        for number, rows in zip(found[order].tolist(), lost[order].tolist(), strict=True):
            if -number in self._queue:
                self.ready_rows -= self._ready_rows[number]
            if not self._count(number, -rows):
                self._queue.discard(-number)
                continue
            self.ready_rows += self._ready_rows[number]
            if -number not in self._queue:
                self._queue.append([-number], self._keys([-number], slots))

    expel = remove

    def restart(self) -> None:
        """Rebuild the queue from all ready rows, in the order in which the first rows of groups arrived."""
        self.readiness.marked[:] = False
        self._queue.clear()
        self._ready_rows.clear()
        self.ready_rows = 0
        self.add(self._rows.all_slots())

    def has(self, amount: Amount) -> bool:
        """Whether so much is ready."""
        return (self.ready_rows if amount.counts_rows else self.ready) >= amount.min_size

    def pop(self, amount: Amount) -> Slots:
        """Pop the first groups of an amount that is ready. Returns their rows, group by group, each in order of
        arrival. Pops only as many groups as fit into max_tokens, into batch_size if it counts rows, and into the most
        rows of a grant, but at least one. The caller marks the rows as taken.
        """
        pieces = list(map(self._rows_of, self._queue.peek(amount.batch_size)))
        fitting = self.fitting(pieces, amount)
        slots = np.concatenate(pieces[:fitting])
        self.remove(slots)
        return slots

    def first(self, size: int, *, counts_rows: bool) -> list[Slots]:
        """The rows of the first queued groups, each in order of arrival, until these are `size` groups or rows."""
        found: list[Slots] = []
        for group in map(self._rows_of, self._queue.peek(size)):
            found.append(group)
            size -= len(group) if counts_rows else 1
            if size <= 0:
                break
        return found

    def fitting(self, pieces: list[Slots], amount: Amount) -> int:
        """How many of the first groups, which have these rows, fit into one grant; see `pop`."""
        sizes: Int64Array = np.array(list(map(len, pieces)), np.int64)
        lengths = self._rows["sequence_length"][np.concatenate(pieces)]
        known = np.maximum(lengths, 0).astype(np.int64)
        of_groups = np.add.reduceat(known, np.cumsum(sizes) - sizes)
        most = min(amount.batch_size, _MOST_ROWS) if amount.counts_rows else _MOST_ROWS
        return min(within_tokens(of_groups, amount.max_tokens), within_tokens(sizes, most))

    def queued(self) -> list[int]:
        """The slots of the queued groups, in order."""
        return [slot for key in self._queue for slot in self._rows_of(key).tolist()]

    def close(self) -> None:
        self.readiness.close()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _completed(self, slots: Slots) -> list[int]:
        """Note the rows that are ready. Returns the entries of the groups that are complete now, for the queue."""
        fresh = self.readiness.mark(slots)
        numbers = self._rows["group"][fresh]
        if not numbers.any():
            single: list[int] = fresh.tolist()
            self.ready_rows += len(single)
            return single
        keys = np.where(numbers > 0, -numbers, fresh)
        found, first, rows = np.unique(keys, return_index=True, return_counts=True)
        order = first.argsort()
        counted = zip(found[order].tolist(), rows[order].tolist(), strict=True)
        complete = [key for key, new in counted if key >= 0 or self._count(-key, new)]
        self.ready_rows += sum([1 if key >= 0 else self._ready_rows[-key] for key in complete])
        return complete

    def _count(self, number: int, change: int) -> bool:
        """Change how many rows of a group are ready. Returns whether all remaining rows are."""
        ready = self._ready_rows.pop(number, 0) + change
        if ready:
            self._ready_rows[number] = ready
        return 0 < ready == self._groups.size(number)

    def _keys(self, entries: list[int], gone: Slots | None = None) -> list[float]:
        """What orders groups: the keys of their first rows. gone: rows that are about to be removed."""
        if self.readiness.kind.order == "ready":
            return []
        rows = map(self._rows_of, entries)
        first = np.array([(of[0] if gone is None else np.setdiff1d(of, gone, True)[0]) for of in rows], np.int64)
        keys: list[float] = self.readiness.keys(first).tolist()
        return keys

    def _rows_of(self, key: int) -> Slots:
        return self._groups.members(-key) if key < 0 else np.array([key], np.int64)

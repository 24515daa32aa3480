"""Groups of a task that are ready to be claimed whole: every remaining row of the group is ready, as `view` defines it.

It has the methods of `view.View`, but queues groups, in the order in which they became complete; released groups come
first. It counts the queued groups, and their rows. A row without a group counts as a group. A queued group of which
rows are cleared keeps its place; a clear can also make a group complete.

An entry of the queue is one number: the slot of a single row, or the negative number of a group.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

import numpy as np

from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.group_table import GroupTable
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.task_states import Amount, Waiter
from dataplane_server.core.tasks.view import mark_ready, within_tokens

_MOST_ROWS = 1 << 16
"""Most rows in one grant; a grant has at least one group, however large."""
GROUPED_BYTES = 100
"""Of a row without a group in the queue."""


class GroupView:
    """The groups of one task whose remaining rows have all produced the fields of `mask` and are untaken."""

    def __init__(self, rows: RowTable, groups: GroupTable, state_column: str, mask: int) -> None:
        self.mask = np.uint64(mask)
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.ready_rows = 0  # of the queued groups
        self._rows = rows
        self._groups = groups
        self._state_column = state_column
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._ready_rows: dict[int, int] = {}  # by group number, if there are any
        self._column = f"ready in groups:{state_column}:{mask}"
        rows.add_column(self._column, np.bool_, GROUPED_BYTES)
        self.add(rows.all_slots())

    @property
    def ready(self) -> int:
        """How many groups are queued."""
        return len(self._queue)

    def add(self, slots: Slots) -> None:
        """Note the rows that are ready, and queue the groups that this completes."""
        self._queue.update(dict.fromkeys(self._completed(slots)))

    def return_rows(self, slots: Slots) -> None:
        """As add, but ahead of all queued groups."""
        for key in reversed(self._completed(slots)):
            self._queue[key] = None
            self._queue.move_to_end(key, last=False)

    def remove(self, slots: Slots) -> None:
        """Remove rows that were taken, or are about to be removed and no longer count in their groups."""
        column, numbers = self._rows[self._column], self._rows["group"][slots]
        were_in = column[slots]
        column[slots] = False
        for slot in slots[were_in & (numbers == 0)].tolist():
            del self._queue[slot]
            self.ready_rows -= 1
        grouped = numbers > 0
        found, first, position = np.unique(numbers[grouped], return_index=True, return_inverse=True)
        lost = np.bincount(position, weights=were_in[grouped], minlength=len(found)).astype(np.int64)
        order = first.argsort()
        for number, rows in zip(found[order].tolist(), lost[order].tolist(), strict=True):
            if -number in self._queue:
                self.ready_rows -= self._ready_rows[number]
            if self._count(number, -rows):
                self._queue.setdefault(-number)
                self.ready_rows += self._ready_rows[number]
            else:
                self._queue.pop(-number, None)

    def restart(self) -> None:
        """Rebuild the queue from all ready rows, in the order in which the first rows of groups arrived."""
        self._rows[self._column][:] = False
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
        keys = list(islice(self._queue, amount.batch_size))
        pieces = list(map(self._rows_of, keys))
        fitting = self._fitting(pieces, amount)
        slots = np.concatenate(pieces[:fitting])
        self.remove(slots)
        return slots

    def next_waiter(self) -> Waiter | None:
        """The first waiting claim, if enough groups are ready for it."""
        head = next(iter(self.waiters.values()), None)
        return head if head is not None and self.has(head.amount) else None

    def queued(self) -> list[int]:
        """The slots of the queued groups, in order."""
        return [slot for key in self._queue for slot in self._rows_of(key).tolist()]

    def close(self) -> None:
        self._rows.drop_column(self._column, GROUPED_BYTES)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _completed(self, slots: Slots) -> list[int]:
        """Note the rows that are ready. Returns the entries of the groups that are complete now, for the queue."""
        fresh = mark_ready(self._rows, self._column, self._state_column, self.mask, slots)
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

    def _rows_of(self, key: int) -> Slots:
        return self._groups.members(-key) if key < 0 else np.array([key], np.int64)

    def _fitting(self, pieces: list[Slots], amount: Amount) -> int:
        """How many of the first groups fit into one grant."""
        sizes: Int64Array = np.array(list(map(len, pieces)), np.int64)
        lengths = self._rows["sequence_length"][np.concatenate(pieces)]
        known = np.maximum(lengths, 0).astype(np.int64)
        of_groups = np.add.reduceat(known, np.cumsum(sizes) - sizes)
        most = min(amount.batch_size, _MOST_ROWS) if amount.counts_rows else _MOST_ROWS
        return min(within_tokens(of_groups, amount.max_tokens), within_tokens(sizes, most))

"""Groups of a task that are ready to be claimed whole: every row that is left of them is ready, as `view` means it.

The same face as `view.View`, but what stands in line, and what sizes count, are groups: in the order in which they
became complete, those given back first. A row outside of any group is a group of its own. A group of which rows are
cleared keeps its place, or becomes complete by what went.

An entry of the line is one number: the slot of a single row, or the negative number of a group.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

import numpy as np

from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.group_table import GroupTable
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.task_states import Waiter
from dataplane_server.core.tasks.view import mark_ready, within_tokens

_MOST_ROWS = 1 << 16
"""Rows handed out at once, but one group in any case."""


class GroupView:
    """Groups of one task in whose rows all fields of `mask` are produced, and of which it has taken none."""

    def __init__(self, rows: RowTable, groups: GroupTable, state_column: str, mask: int) -> None:
        self.mask = np.uint64(mask)
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self._rows = rows
        self._groups = groups
        self._state_column = state_column
        self._line: OrderedDict[int, None] = OrderedDict()
        self._ready_rows: dict[int, int] = {}  # of each group that has some, by number
        self._column = f"ready in groups:{state_column}:{mask}"
        rows.add_column(self._column, np.bool_)
        self.add(rows.all_slots())

    @property
    def ready(self) -> int:
        """Groups in line."""
        return len(self._line)

    @property
    def ready_rows(self) -> int:
        """Rows of the groups in line."""
        return sum(1 if key >= 0 else self._ready_rows[-key] for key in self._line)

    def add(self, slots: Slots) -> None:
        """Take in those of the rows that are ready and not yet in."""
        self._line.update(dict.fromkeys(self._completed(slots)))

    def return_rows(self, slots: Slots) -> None:
        """Like add, but groups that are complete now stand ahead of all that wait."""
        for key in reversed(self._completed(slots)):
            self._line[key] = None
            self._line.move_to_end(key, last=False)

    def remove(self, slots: Slots) -> None:
        """Forget rows that were taken, or are about to go and do not count for their groups any more."""
        column, numbers = self._rows[self._column], self._rows["group"][slots]
        were_in = column[slots]
        column[slots] = False
        for slot in slots[were_in & (numbers == 0)].tolist():
            del self._line[slot]
        grouped = numbers > 0
        found, first, position = np.unique(numbers[grouped], return_index=True, return_inverse=True)
        lost = np.bincount(position, weights=were_in[grouped], minlength=len(found)).astype(np.int64)
        order = first.argsort()
        for number, rows in zip(found[order].tolist(), lost[order].tolist(), strict=True):
            if self._count(number, -rows):
                self._line.setdefault(-number)
            else:
                self._line.pop(-number, None)

    def restart(self) -> None:
        """Take in all ready rows anew; groups stand in the order in which their first rows arrived."""
        self._rows[self._column][:] = False
        self._line.clear()
        self._ready_rows.clear()
        self.add(self._rows.all_slots())

    def pop(self, count: int, max_tokens: int = 0) -> Slots:
        """Pop the first `count` groups, of which there must be so many: their rows, each group's side by side in order
        of arrival; the caller marks them taken. With max_tokens only as many as have no more tokens together, but one
        group at least; likewise no more than fit one answer.
        """
        keys = list(islice(self._line, count))
        pieces = list(map(self._rows_of, keys))
        fitting = self._fitting(pieces, max_tokens)
        slots = np.concatenate(pieces[:fitting])
        self.remove(slots)
        return slots

    def next_waiter(self) -> Waiter | None:
        """The waiter at the head, if enough groups are ready for it."""
        head = next(iter(self.waiters.values()), None)
        return head if head is not None and self.ready >= head.min_size else None

    def queued(self) -> list[int]:
        """Slots of the groups in line, in order."""
        return [slot for key in self._line for slot in self._rows_of(key).tolist()]

    def close(self) -> None:
        self._rows.drop_column(self._column)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _completed(self, slots: Slots) -> list[int]:
        """Take in those of the rows that are ready and not yet in; the groups that are complete now."""
        fresh = mark_ready(self._rows, self._column, self._state_column, self.mask, slots)
        numbers = self._rows["group"][fresh]
        if not numbers.any():
            single: list[int] = fresh.tolist()
            return single
        keys = np.where(numbers > 0, -numbers, fresh)
        found, first, rows = np.unique(keys, return_index=True, return_counts=True)
        order = first.argsort()
        counted = zip(found[order].tolist(), rows[order].tolist(), strict=True)
        return [key for key, new in counted if key >= 0 or self._count(-key, new)]

    def _count(self, number: int, change: int) -> bool:
        """Note that more or fewer rows of a group are ready; whether all that are left are."""
        ready = self._ready_rows.pop(number, 0) + change
        if ready:
            self._ready_rows[number] = ready
        return 0 < ready == self._groups.size(number)

    def _rows_of(self, key: int) -> Slots:
        return self._groups.members(-key) if key < 0 else np.array([key], np.int64)

    def _fitting(self, pieces: list[Slots], max_tokens: int) -> int:
        """How many of the first groups can be handed out together."""
        sizes: Int64Array = np.array(list(map(len, pieces)), np.int64)
        lengths = self._rows["sequence_length"][np.concatenate(pieces)]
        known = np.maximum(lengths, 0).astype(np.int64)
        of_groups = np.add.reduceat(known, np.cumsum(sizes) - sizes)
        return min(within_tokens(of_groups, max_tokens), within_tokens(sizes, _MOST_ROWS))

"""Rows of a task that are ready for a claim: untaken, visible, and with all fields of the claim produced.

Claims name the fields they need, so readiness belongs to a pair of task and field set: a *view*. It keeps its ready
rows in a queue, in the order in which they became ready, and learns of every change of a row; a claim therefore pops
rows and never scans the partition. Rows that were ready before a view was first asked for come in order of arrival;
rows that a claim gave back come first. A row that its group still hides is in no view.

Waiting claims queue at their view, first come first served. A view with nobody waiting may be forgotten and rebuilt.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.task_states import UNTAKEN, Waiter

_COMPACT_ABOVE = 1024
_PEEKED = 16
_SPARE = 64
_SLOT_BITS = 31
_SLOT = (1 << _SLOT_BITS) - 1


class ReadyQueue:
    """A queue of 64-bit entries in one array with room at both ends.

    Ready rows are the most numerous thing that a task keeps: an entry costs 8 bytes and an eighth of slack, and many
    are appended, peeked at or dropped at once. When an end runs out of room the entries are copied, which is rare
    enough that its cost a call is constant. What `peek` returns is valid until the next change.
    """

    def __init__(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return self._end - self._head

    def clear(self) -> None:
        self._array: Int64Array = np.zeros(0, np.int64)
        self._head = self._end = 0

    def append(self, entries: Int64Array) -> None:
        if self._end + len(entries) > len(self._array):
            self._make_room(0, len(entries))
        self._array[self._end : self._end + len(entries)] = entries
        self._end += len(entries)

    def prepend(self, entries: Int64Array) -> None:
        """PutSamples entries, in their order, ahead of all others."""
        if self._head < len(entries):
            self._make_room(len(entries), 0)
        self._head -= len(entries)
        self._array[self._head : self._head + len(entries)] = entries

    def peek(self, count: int) -> Int64Array:
        """Up to `count` entries from the head, which stay in the queue."""
        return self._array[self._head : min(self._head + count, self._end)]

    def drop(self, count: int) -> None:
        self._head += count

    def _make_room(self, before: int, after: int) -> None:
        waiting = self.peek(len(self))
        spare = len(waiting) // 8 + _SPARE
        before += spare if before else 0
        after += spare
        array = np.zeros(before + len(waiting) + after, np.int64)
        array[before : before + len(waiting)] = waiting
        self._array, self._head, self._end = array, before, before + len(waiting)


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

    def return_rows(self, slots: Slots) -> None:
        """Like add, but ahead of all rows that wait."""
        self._queue.prepend(self._enter(slots))

    def remove(self, slots: Slots) -> None:
        """Forget rows that were taken or cleared."""
        column = self._rows[self._column]
        self.ready -= int(np.count_nonzero(column[slots]))
        column[slots] = False
        if len(self._queue) > 2 * self.ready + _COMPACT_ABOVE:
            entries = self._queue.peek(len(self._queue))
            kept = entries[self._positions_ready(entries, len(entries))]
            self._queue.clear()
            self._queue.append(kept)

    def restart(self) -> None:
        """Queue all ready rows anew, in order of arrival."""
        self._rows[self._column][:] = False
        self._queue.clear()
        self.ready = 0
        self.add(self._rows.all_slots())

    def pop(self, count: int, max_tokens: int = 0) -> Slots:
        """Pop the first `count` ready rows, of which there must be so many; the caller marks them taken. With
        max_tokens only as many as have no more tokens together, but one at least.
        """
        slots = self._pop(count)
        fitting = within_tokens(self._rows["sequence_length"][slots], max_tokens)
        if fitting < count:
            self.return_rows(slots[fitting:])
        return slots[:fitting]

    def _pop(self, count: int) -> Slots:
        column = self._rows[self._column]
        taken: list[Slots] = []
        missing = count
        while missing:
            entries = self._queue.peek(max(missing, _PEEKED))
            positions = self._positions_ready(entries, missing)
            missing -= len(positions)
            slots = entries[positions] & _SLOT
            column[slots] = False  # at once: a row given back earlier may stand in the queue once more
            taken.append(slots)
            self._queue.drop(len(entries) if missing else int(positions[-1]) + 1)
        self.ready -= count
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    @property
    def ready_rows(self) -> int:
        """Rows that claims could take."""
        return self.ready

    def next_waiter(self) -> Waiter | None:
        """The waiter at the head, if enough rows are ready for it."""
        head = next(iter(self.waiters.values()), None)
        return head if head is not None and self.ready >= head.min_size else None

    def queued(self) -> list[int]:
        """Slots in the queue, in order."""
        entries = self._queue.peek(len(self._queue))
        slots: list[int] = (entries[self._positions_ready(entries, len(entries))] & _SLOT).tolist()
        return slots

    def close(self) -> None:
        self._rows.drop_column(self._column)

    def _positions_ready(self, entries: Int64Array, most: int) -> Int64Array:
        """Positions of the first `most` entries whose rows are still ready, each row once."""
        slots = entries & _SLOT
        ready = self._rows[self._column][slots] & (self._rows.epochs(slots) == entries >> _SLOT_BITS)
        positions: Int64Array = ready.nonzero()[0]
        if most > 1:
            in_order = np.sort(slots[positions[:most]])
            if np.count_nonzero(in_order[1:] == in_order[:-1]):
                positions = positions[np.sort(np.unique(slots[positions], return_index=True)[1])]
        return positions[:most]

    def _enter(self, slots: Slots) -> Int64Array:
        """Mark those of the rows that are ready and not yet in the queue as being in it; their entries."""
        fresh = mark_ready(self._rows, self._column, self._state_column, self.mask, slots)
        self.ready += len(fresh)
        entries: Int64Array = (self._rows.epochs(fresh).astype(np.int64) << _SLOT_BITS) | fresh
        return entries


def mark_ready(rows: RowTable, column: str, state_column: str, mask: np.uint64, slots: Slots) -> Slots:
    """Mark in `column` those of the rows that are ready and not yet marked; which they are."""
    marked = rows[column]
    produced = (rows["produced"][slots] & mask) == mask
    untaken = rows[state_column][slots] == UNTAKEN
    fresh: Slots = slots[produced & untaken & ~rows["hidden"][slots] & ~marked[slots]]
    marked[fresh] = True
    return fresh


def within_tokens(lengths: npt.NDArray[np.signedinteger[Any]], max_tokens: int) -> int:
    """How many of the first lengths stay within max_tokens together (0: all), at least one; unknown ones count as 0."""
    if not max_tokens:
        return len(lengths)
    tokens = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    return max(1, int(np.searchsorted(tokens, max_tokens, side="right")))

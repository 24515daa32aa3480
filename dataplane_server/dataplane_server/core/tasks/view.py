"""Rows of a task that are ready for a claim: untaken, visible, and with all fields of the claim produced.

A claim names the fields that it needs, so readiness depends on a task and a set of fields: a *view*. A view queues its
ready rows in the order in which they became ready, and is notified of every change of a row. So a claim pops rows and
never scans the partition. Rows that were ready before the view existed come in order of arrival; released rows come
first. A row that its group still hides is in no view.

Waiting claims queue at their view, first come first served. A view without waiting claims may be dropped and rebuilt.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.task_states import UNTAKEN, Amount, Waiter

_COMPACT_ABOVE = 1024
_PEEKED = 16
_SPARE = 64
QUEUED_BYTES = 20
"""Of a row in a queue, with its slack."""
_SLOT_BITS = 31
_SLOT = (1 << _SLOT_BITS) - 1


class ReadyQueue:
    """A queue of 64-bit entries in one array with room at both ends.

    A task may have millions of ready rows: an entry costs 8 bytes and an eighth of slack, and calls append, peek at or
    drop many at once. When an end runs out of room, the entries are copied, at a constant amortized cost. The result of
    `peek` is valid until the next change.
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
        """Put entries, in their order, ahead of all others."""
        if self._head < len(entries):
            self._make_room(len(entries), 0)
        self._head -= len(entries)
        self._array[self._head : self._head + len(entries)] = entries

    def peek(self, count: int) -> Int64Array:
        """Up to `count` entries from the head. They stay in the queue."""
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
    """The rows of one task that have produced all fields of `mask` and are untaken."""

    def __init__(self, rows: RowTable, state_column: str, mask: int) -> None:
        self.mask = np.uint64(mask)
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.ready = 0
        self._rows = rows
        self._state_column = state_column
        self._queue = ReadyQueue()  # epoch and slot of each row in one int; rows that are no longer ready are skipped
        self._column = f"ready:{state_column}:{mask}"
        rows.add_column(self._column, np.bool_, QUEUED_BYTES)
        self.add(rows.all_slots())

    def add(self, slots: Slots) -> None:
        """Queue the rows that are ready and not yet queued."""
        self._queue.append(self._enter(slots))

    def return_rows(self, slots: Slots) -> None:
        """As add, but ahead of all queued rows."""
        self._queue.prepend(self._enter(slots))

    def remove(self, slots: Slots) -> None:
        """Remove rows that were taken or cleared."""
        column = self._rows[self._column]
        self.ready -= int(np.count_nonzero(column[slots]))
        column[slots] = False
        if len(self._queue) > 2 * self.ready + _COMPACT_ABOVE:
            entries = self._queue.peek(len(self._queue))
            kept = entries[self._positions_ready(entries, len(entries))]
            self._queue.clear()
            self._queue.append(kept)

    def restart(self) -> None:
        """Rebuild the queue from all ready rows, in order of arrival."""
        self._rows[self._column][:] = False
        self._queue.clear()
        self.ready = 0
        self.add(self._rows.all_slots())

    def has(self, amount: Amount) -> bool:
        """Whether so much is ready."""
        return self.ready >= amount.min_size

    def pop(self, amount: Amount) -> Slots:
        """Pop the first rows of an amount that is ready: with max_tokens only as many as have at most that many tokens
        together, but at least one. The caller marks them as taken.
        """
        slots = self._pop(min(self.ready, amount.batch_size))
        fitting = within_tokens(self._rows["sequence_length"][slots], amount.max_tokens)
        if fitting < len(slots):
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
            column[slots] = False  # before the next peek: a released row may be in the queue twice
            taken.append(slots)
            self._queue.drop(len(entries) if missing else int(positions[-1]) + 1)
        self.ready -= count
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    @property
    def ready_rows(self) -> int:
        """How many rows a claim could take."""
        return self.ready

    def next_waiter(self) -> Waiter | None:
        """The first waiting claim, if enough rows are ready for it."""
        head = next(iter(self.waiters.values()), None)
        return head if head is not None and self.has(head.amount) else None

    def queued(self) -> list[int]:
        """The slots in the queue, in order."""
        entries = self._queue.peek(len(self._queue))
        slots: list[int] = (entries[self._positions_ready(entries, len(entries))] & _SLOT).tolist()
        return slots

    def close(self) -> None:
        self._rows.drop_column(self._column, QUEUED_BYTES)

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
        """Mark the rows that are ready and not yet queued as queued. Returns their entries."""
        fresh = mark_ready(self._rows, self._column, self._state_column, self.mask, slots)
        self.ready += len(fresh)
        entries: Int64Array = (self._rows.epochs(fresh).astype(np.int64) << _SLOT_BITS) | fresh
        return entries


def mark_ready(rows: RowTable, column: str, state_column: str, mask: np.uint64, slots: Slots) -> Slots:
    """Mark in `column` the rows that are ready and not yet marked. Returns them."""
    marked = rows[column]
    produced = (rows["produced"][slots] & mask) == mask
    untaken = rows[state_column][slots] == UNTAKEN
    fresh: Slots = slots[produced & untaken & ~rows["hidden"][slots] & ~marked[slots]]
    marked[fresh] = True
    return fresh


def within_tokens(lengths: npt.NDArray[np.signedinteger[Any]], max_tokens: int) -> int:
    """How many of the first lengths have a sum of at most max_tokens; at least 1. All if max_tokens is 0. An unknown
    length counts as 0. Of other sizes than tokens, likewise.
    """
    if not max_tokens:
        return len(lengths)
    tokens = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    return max(1, int(np.searchsorted(tokens, max_tokens, side="right")))

"""Rows of a task that are ready for a claim: untaken, visible, and with all fields of the claim produced.

A claim names the fields that it needs, perhaps a filter and an order, so readiness depends on a task and a *kind* of
claims; see `tasks.readiness`. A view queues the ready rows of a kind and is notified of every change of a row. So a
claim pops rows and never scans the partition. Rows come in the order in which they became ready, or in that of a key,
such as their weight version. Rows that were ready before the view existed come in order of arrival; released rows come
first among those of their key. A row that its group still hides is in no view.

Waiting claims queue at their view, first come first served. A view without waiting claims may be dropped and rebuilt.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.eligibility import Bounds
from dataplane_server.core.tasks.queues import Entries, KeyedQueue, ReadyQueue
from dataplane_server.core.tasks.readiness import Kind, Readiness
from dataplane_server.core.tasks.task_states import Amount, Waiter

_COMPACT_ABOVE = 1024
_PEEKED = 16
QUEUED_BYTES = 20
"""Of a row in a queue, with its slack."""
KEYED_BYTES = 32
"""Of a row in a queue with keys."""
KEY_BYTES = 9
"""Of the key of a row, and whether it has moved."""
_SLOT_BITS = 31
_SLOT = (1 << _SLOT_BITS) - 1


class View:
    """The rows of one task that are ready for claims of one kind. bounds: see `Readiness`."""

    def __init__(self, rows: RowTable, state_column: str, kind: Kind, bounds: Bounds) -> None:
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.ready = 0
        self._ghosts = False  # whether the queue may have entries of rows that left, where they would be if they return
        self._rows = rows
        self._queue: ReadyQueue | KeyedQueue  # epoch and slot of each row in one int; rows not ready are skipped
        self._keys = ""  # the column of keys of the queued rows; an entry with another key is not the row's last one
        self._moved = ""  # the column of rows whose key has changed while entries of the former key are in the queue
        if kind.order == "ready":
            self._queue = ReadyQueue()
            self.readiness = Readiness(rows, state_column, kind, bounds, QUEUED_BYTES)
        else:
            self._queue = KeyedQueue()
            self.readiness = Readiness(rows, state_column, kind, bounds, KEYED_BYTES)
            self._keys = f"key:{self.readiness.column}"
            rows.add_column(self._keys, np.float64)
            self._moved = f"moved:{self.readiness.column}"
            rows.add_column(self._moved, np.bool_)
        self.add(rows.all_slots())

    def add(self, slots: Slots) -> None:
        """Queue the rows that are ready and not yet queued."""
        if self._ghosts:
            self._compact()
        self._queue.append(self._enter(slots))

    def return_rows(self, slots: Slots) -> None:
        """As add, but ahead of all queued rows."""
        entries = self._enter(slots)
        self._ghosts |= self.readiness.can_change and len(entries.numbers) < len(slots)
        self._queue.prepend(entries)

    def update(self, slots: Slots) -> None:
        """Rows have other fields, tags or a version than before: queue those that are ready, and remove the others.
        Rows whose key has changed are queued anew.
        """
        if self.readiness.can_change:
            self.expel(self.readiness.no_longer(slots))
            if self._keys:
                self._rekey(slots[self.readiness.marked[slots]])
        self.add(slots)

    def _rekey(self, queued: Slots) -> None:
        """Remove the rows that have another key now. A former entry of a row counts again if its key does, so from the
        second change of a row on, such entries are dropped.
        """
        moved = queued[self._rows[self._keys][queued] != self.readiness.keys(queued)]
        self.remove(moved)
        if self._rows[self._moved][moved].any():
            self._compact()
        else:
            self._rows[self._moved][moved] = True

    def remove(self, slots: Slots) -> None:
        """Remove rows that were taken or cleared, or are not ready any more."""
        column = self.readiness.marked
        self.ready -= int(np.count_nonzero(column[slots]))
        column[slots] = False
        if len(self._queue) > 2 * self.ready + _COMPACT_ABOVE:
            self._compact()

    def expel(self, slots: Slots) -> None:
        """Remove rows that may be ready again, by another policy, version or tag. They come last then."""
        self.remove(slots)
        self._ghosts |= len(slots) > 0

    def restart(self) -> None:
        """Rebuild the queue from all ready rows, in order of arrival."""
        self.readiness.marked[:] = False
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
        column = self.readiness.marked
        taken: list[Slots] = []
        missing = count
        while missing:
            entries = self._queue.peek(max(missing, _PEEKED))
            positions = self._positions_ready(entries, missing)
            missing -= len(positions)
            slots = entries.numbers[positions] & _SLOT
            column[slots] = False  # before the next peek: a released row may be in the queue twice
            taken.append(slots)
            self._queue.drop(len(entries.numbers) if missing else int(positions[-1]) + 1)
        self.ready -= count
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    @property
    def ready_rows(self) -> int:
        """How many rows a claim could take."""
        return self.ready

    def queued(self) -> list[int]:
        """The slots in the queue, in order."""
        entries = self._queue.peek(len(self._queue))
        slots: list[int] = (entries.numbers[self._positions_ready(entries, len(self._queue))] & _SLOT).tolist()
        return slots

    def close(self) -> None:
        self.readiness.close()
        if self._keys:
            self._rows.drop_column(self._keys)
            self._rows.drop_column(self._moved)

    def _compact(self) -> None:
        """Drop the entries of rows that have left."""
        entries = self._queue.peek(len(self._queue))
        kept = self._positions_ready(entries, len(self._queue))
        self._queue.clear()
        self._queue.append(Entries(entries.numbers[kept], entries.keys[kept] if self._keys else entries.keys))
        self._ghosts = False
        if self._keys:
            self._rows[self._moved][:] = False

    def _positions_ready(self, entries: Entries, most: int) -> Int64Array:
        """Positions of the first `most` entries whose rows are still ready, each row once."""
        slots = entries.numbers & _SLOT
        ready = self.readiness.marked[slots] & (self._rows.epochs(slots) == entries.numbers >> _SLOT_BITS)
        if self._keys:
            ready &= self._rows[self._keys][slots] == entries.keys
        positions: Int64Array = ready.nonzero()[0]
        if most > 1:
            in_order = np.sort(slots[positions[:most]])
            if np.count_nonzero(in_order[1:] == in_order[:-1]):
                positions = positions[np.sort(np.unique(slots[positions], return_index=True)[1])]
        return positions[:most]

    def _enter(self, slots: Slots) -> Entries:
        """Mark the rows that are ready and not yet queued as queued. Returns their entries."""
        fresh = self.readiness.mark(slots)
        self.ready += len(fresh)
        numbers: Int64Array = (self._rows.epochs(fresh).astype(np.int64) << _SLOT_BITS) | fresh
        if not self._keys:
            return Entries(numbers)
        keys = self._rows[self._keys][fresh] = self.readiness.keys(fresh)
        return Entries(numbers, keys)


def within_tokens(lengths: npt.NDArray[np.signedinteger[Any]], max_tokens: int) -> int:
    """How many of the first lengths have a sum of at most max_tokens; at least 1. All if max_tokens is 0. An unknown
    length counts as 0. Of other sizes than tokens, likewise.
    """
    if not max_tokens:
        return len(lengths)
    tokens = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    return max(1, int(np.searchsorted(tokens, max_tokens, side="right")))

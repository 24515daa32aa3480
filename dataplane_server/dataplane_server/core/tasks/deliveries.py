"""The deliveries of rows to a task: how many, how they ended, and why rows are dead.

A delivery begins when a claim is granted and ends exactly once, in one of the ways of `How`. So the rows delivered are
the rows claimed plus the deliveries ended, and a lost row would show. A delivery that fails through no fault of the row
(the claim was released unused) does not count: the row's count goes back by one.

A row is dead when its count has reached the partition's max_deliveries and its delivery fails: no claim gets it until
the task is reset. The reason of the last failure is kept as long as the row.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from dataplane_server.core.calls.names import MAX_DELIVERIES
from dataplane_server.core.calls.values import BoolArray, Int64Array, Slots
from dataplane_server.core.rows.bookkeeping import DEAD_BYTES, text_bytes
from dataplane_server.core.rows.row_table import RowTable

CLAIMED_BYTES = 24
"""Of a row in an open claim: its slot, its epoch, its id's place."""
How = Literal["committed", "released", "expired", "reset", "cleared", "abandoned"]


class Deliveries:
    """The deliveries of one task."""

    def __init__(self, task: str, rows: RowTable) -> None:
        self.total = 0
        self.ended: dict[str, int] = {}
        self._rows = rows
        self._column = f"deliveries:{task}"
        self._reasons: dict[int, str] = {}  # slot of a dead row -> why its last delivery failed
        rows.add_column(self._column, np.uint16, CLAIMED_BYTES)

    @property
    def open(self) -> int:
        """Deliveries that have not ended."""
        return self.total - sum(self.ended.values())

    def counts(self, slots: Slots) -> Int64Array:
        counts: Int64Array = self._rows[self._column][slots].astype(np.int64)
        return counts

    def begin(self, slots: Slots) -> None:
        counts = self._rows[self._column]
        counts[slots] += counts[slots] < MAX_DELIVERIES
        self.total += len(slots)

    def end(self, rows: int, how: How) -> None:
        if rows:
            self.ended[how] = self.ended.get(how, 0) + rows

    def take_back(self, slots: Slots) -> None:
        """Do not count the delivery that just ended."""
        counts = self._rows[self._column]
        counts[slots] -= counts[slots] > 0

    def exhausted(self, slots: Slots, most: int) -> BoolArray:
        """Which of the rows have been delivered `most` times; none if most is 0."""
        return np.asarray((self._rows[self._column][slots] >= most) & bool(most))

    def bury(self, slots: Slots, reason: str) -> None:
        """Record why rows are dead."""
        self._reasons.update(dict.fromkeys(slots.tolist(), reason))
        self._rows.keep(len(slots) * _kept_bytes(reason))

    def reason(self, slot: int) -> str:
        return self._reasons.get(slot, "")

    def forget(self, slots: Slots) -> None:
        """Reset the rows, because they start again or are removed."""
        self._rows[self._column][slots] = 0
        for slot in slots.tolist() if self._reasons else ():
            if slot in self._reasons:
                self._rows.keep(-_kept_bytes(self._reasons.pop(slot)))

    def forget_all(self) -> None:
        self._rows[self._column][:] = 0
        self._rows.keep(-self.kept_bytes)
        self._reasons.clear()

    @property
    def kept_bytes(self) -> int:
        return sum(map(_kept_bytes, self._reasons.values()))

    def close(self) -> None:
        self.forget_all()
        self._rows.drop_column(self._column, CLAIMED_BYTES)


def _kept_bytes(reason: str) -> int:
    return DEAD_BYTES + text_bytes(reason)

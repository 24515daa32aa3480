"""How often each row was handed to a task, how that ended, and which rows the task has given up.

A delivery begins when rows are handed out and ends exactly once, in one of the ways of `How`; so what was delivered is
what is claimed now plus what has ended, and a row that vanished on the way would show. A delivery that came to nothing
through no fault of the row (the claim was given back unused) is not held against it: its count goes back by one.

A row whose count has reached the partition's max_deliveries and whose delivery failed once more is dead: no claim gets
it until the task is reset. Why its last delivery failed is kept, for as long as the row is.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from dataplane_server.core.calls.values import BoolArray, Int64Array, Slots
from dataplane_server.core.rows.row_table import RowTable

How = Literal["committed", "released", "expired", "reset", "cleared", "abandoned"]
MAX_DELIVERIES = (1 << 16) - 1


class Deliveries:
    """The deliveries of one task."""

    def __init__(self, task: str, rows: RowTable) -> None:
        self.total = 0
        self.ended: dict[str, int] = {}
        self._rows = rows
        self._column = f"deliveries:{task}"
        self._reasons: dict[int, str] = {}  # slot -> why the last delivery of a dead row failed
        rows.add_column(self._column, np.uint16)

    @property
    def open(self) -> int:
        """Rows handed out whose delivery has not ended."""
        return self.total - sum(self.ended.values())

    def counts(self, slots: Slots) -> Int64Array:
        """How often each of the rows was delivered."""
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
        """The delivery that just ended does not count."""
        counts = self._rows[self._column]
        counts[slots] -= counts[slots] > 0

    def exhausted(self, slots: Slots, most: int) -> BoolArray:
        """Which of the rows have been delivered `most` times; none when most is 0."""
        return np.asarray((self._rows[self._column][slots] >= most) & bool(most))

    def bury(self, slots: Slots, reason: str) -> None:
        """Keep why the rows were given up."""
        self._reasons.update(dict.fromkeys(slots.tolist(), reason))

    def reason(self, slot: int) -> str:
        return self._reasons.get(slot, "")

    def forget(self, slots: Slots) -> None:
        """The rows start anew, or are gone."""
        self._rows[self._column][slots] = 0
        for slot in slots.tolist() if self._reasons else ():
            self._reasons.pop(slot, None)

    def forget_all(self) -> None:
        self._rows[self._column][:] = 0
        self._reasons.clear()

    def close(self) -> None:
        self._rows.drop_column(self._column)

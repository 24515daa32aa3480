"""The entrance of a partition: new rows that wait for room, and draws that wait for new rows.

Both lines are first come, first served. What was admitted and has not finished *comes*: it counts as if it were there,
so puts under way together stay within the budgets.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from dataplane_server.core.calls.flow import FlowPolicy
from dataplane_server.core.calls.requests import DrawSamples, PutSamples, ReserveGroup
from dataplane_server.core.calls.values import Int64Array


@dataclass(slots=True)
class Entry:
    """New rows. rows: with those that leave for a put and that it creates again. size_bytes: of their values as far as
    they are known. since: when they came, monotonic, s. counted_at: how many rows the partition had been given when it
    was last seen whether all of them had come meanwhile.
    """

    call: PutSamples | ReserveGroup
    rows: int
    size_bytes: int
    since: float
    counted_at: int = 0


class Entrance:
    """By ticket. put_before, drawn_before: what the surplus does not count. begun_at: the generation of the next row
    when these were set. changed: whether what may come has changed, so that those that wait are looked at again; the
    turn clears it.
    """

    def __init__(self) -> None:
        self.policy = FlowPolicy()
        self.waiting: OrderedDict[int, Entry] = OrderedDict()
        self.draws: OrderedDict[int, DrawSamples] = OrderedDict()
        self.coming: dict[int, Entry] = {}
        self.changed = False
        self.drawn_rows = 0
        self.put_before = self.drawn_before = self.begun_at = 0

    @property
    def coming_rows(self) -> int:
        return sum(entry.rows for entry in self.coming.values())

    @property
    def coming_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.coming.values())

    def follow(self, policy: FlowPolicy, rows_offered: int, generation: int) -> None:
        """The policy is this one from now on. Another band begins with a surplus of 0."""
        if policy.band != self.policy.band:
            self._begin(rows_offered, generation)
        self.policy, self.changed = policy, True

    def emptied(self, rows_offered: int, generation: int) -> None:
        """No row is left: a surplus would hold up new ones for draws that cannot come."""
        if self.surplus(rows_offered) > 0:
            self._begin(rows_offered, generation)

    def withdrawn(self, generations: Int64Array) -> None:
        """Rows are offered no more."""
        self.put_before -= int(np.count_nonzero(generations < self.begun_at))

    def _begin(self, rows_offered: int, generation: int) -> None:
        self.put_before, self.drawn_before, self.begun_at = rows_offered, self.drawn_rows, generation

    def surplus(self, rows_offered: int) -> float:
        """By how much the rows put are ahead of the rows drawn; see DrawBand."""
        ratio = 0.0 if self.policy.band is None else self.policy.band.samples_per_insert
        return ratio * (rows_offered - self.put_before) - (self.drawn_rows - self.drawn_before)

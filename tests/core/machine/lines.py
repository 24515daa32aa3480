"""The rows that are ready for a task and a kind of claims, in the order in which they will be handed out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.core.machine.things import Group, Row, Wish

from dataplane_server.core.calls.policies import ClaimOrder

Unit = Row | Group
"""What is handed out whole: a row, or a group with all of its rows."""


class Kind(NamedTuple):
    """What claims of one line have in common. whole: of groups, where rows outside of groups are alone."""

    task: str
    fields: frozenset[str]
    whole: bool
    order: ClaimOrder
    order_tag: str


class Line:
    """One task's line for claims of one kind. is_stale: which rows the task does not get."""

    def __init__(self, kind: Kind, rows: Iterable[Row], is_stale: Callable[[str, Row], bool]) -> None:
        self.kind = kind
        self.units: list[Unit] = []
        self._is_stale = is_stale
        self._keys: dict[Unit, float] = {}  # by which those in line are ordered
        self.add(rows)

    @property
    def task(self) -> str:
        return self.kind.task

    def add(self, rows: Iterable[Row]) -> None:
        """Those that are ready now come last among their equals."""
        self.units += self._new(rows)
        self._sort()

    def give_back(self, rows: Iterable[Row]) -> None:
        """Those that are ready now come first among their equals."""
        self.units[:0] = self._new(rows)
        self._sort()

    def update(self, rows: Iterable[Row]) -> None:
        """Rows have changed: some leave, some come, and those with another key come last among their equals."""
        self.sift()
        changed = list(dict.fromkeys(map(self._unit, rows)))
        moved = {unit for unit in changed if unit in self.units and self._key(unit) != self._keys[unit]}
        self.units = [unit for unit in self.units if unit not in moved]
        self.add(row for unit in changed for row in rows_of(unit))

    def sift(self) -> None:
        """What is no longer ready leaves."""
        self.units = [unit for unit in self.units if self._ready(unit)]

    def _unit(self, row: Row) -> Unit:
        return row.group if self.kind.whole and row.group is not None else row

    def _sort(self) -> None:
        self.units.sort(key=lambda unit: self._keys[unit])

    def _key(self, unit: Unit) -> float:
        order, row = self.kind.order, rows_of(unit)[0]
        if order == "ready":
            return 0.0
        value = row.tags.get(self.kind.order_tag) if self.kind.order_tag else row.version
        if not isinstance(value, (int, float)):
            return math.inf
        return value if order in ("oldest_version", "lowest_tag") else -value

    def restart(self, rows: Iterable[Row]) -> None:
        self.units = []
        self.add(rows)

    def has(self, wish: Wish) -> bool:
        return sum(map(counting(wish), self.units)) >= wish.min_size

    def first(self, wish: Wish) -> list[Unit]:
        """The first units, as many as the wish wants with no more tokens together, but one at least."""
        taken: list[Unit] = []
        for unit in self.units:
            together = [*taken, unit]
            too_many = sum(map(counting(wish), together)) > wish.batch_size
            if taken and (too_many or (wish.max_tokens and sum(map(tokens, together)) > wish.max_tokens)):
                break
            taken.append(unit)
        return taken

    def _new(self, rows: Iterable[Row]) -> list[Unit]:
        units: list[Unit] = []
        for row in rows:
            unit = self._unit(row)
            if unit not in units and unit not in self.units and self._ready(unit):
                units.append(unit)
                self._keys[unit] = self._key(unit)
        return units

    def _ready(self, unit: Unit) -> bool:
        rows = rows_of(unit)
        return bool(rows) and all(
            row.resident
            and not row.hidden
            and row.standings[self.task].state == "untaken"
            and self.kind.fields <= row.values.keys()
            and not self._is_stale(self.task, row)
            for row in rows
        )


def rows_of(unit: Unit) -> list[Row]:
    return [unit] if isinstance(unit, Row) else unit.rows


def counting(wish: Wish) -> Callable[[Unit], int]:
    """What a unit counts for the sizes of a wish."""
    return (lambda unit: len(rows_of(unit))) if wish.unit == "rows" else (lambda unit: 1)


def tokens(unit: Unit) -> int:
    return sum(max(0, row.length) for row in rows_of(unit))

"""The rows that are ready for a task and a set of fields, in the order in which they will be handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.core.machine.things import Group, Row, Wish

Unit = Row | Group
"""What is handed out whole: a row, or a group with all of its rows."""


class Line:
    """One task's line for one set of fields; whole: of groups, where rows outside of groups are alone."""

    def __init__(self, task: str, fields: frozenset[str], whole: bool, rows: Iterable[Row]) -> None:
        self.task = task
        self.fields = fields
        self.whole = whole
        self.units: list[Unit] = []
        self.add(rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Those that are ready now come last."""
        self.units += self._new(rows)

    def give_back(self, rows: Iterable[Row]) -> None:
        """Those that are ready now come first."""
        self.units[:0] = self._new(rows)

    def sift(self) -> None:
        """What is no longer ready leaves."""
        self.units = [unit for unit in self.units if self._ready(unit)]

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
            unit = row.group if self.whole and row.group is not None else row
            if unit not in units and unit not in self.units and self._ready(unit):
                units.append(unit)
        return units

    def _ready(self, unit: Unit) -> bool:
        rows = rows_of(unit)
        return bool(rows) and all(
            row.resident
            and not row.hidden
            and row.standings[self.task].state == "untaken"
            and self.fields <= row.values.keys()
            for row in rows
        )


def rows_of(unit: Unit) -> list[Row]:
    return [unit] if isinstance(unit, Row) else unit.rows


def counting(wish: Wish) -> Callable[[Unit], int]:
    """What a unit counts for the sizes of a wish."""
    return (lambda unit: len(rows_of(unit))) if wish.unit == "rows" else (lambda unit: 1)


def tokens(unit: Unit) -> int:
    return sum(max(0, row.length) for row in rows_of(unit))

"""One run of the benchmarks: how long it measures, what it says meanwhile, what it has found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from timing import Series, Steps


@dataclass(frozen=True)
class Goal:
    """A promise with what was measured. holds: None where it could not be measured; measured then says why."""

    name: str
    measured: str
    holds: bool | None
    value: float | None = None


@dataclass
class Session:
    """quick: fewer rounds, smaller growth. logs: where worker processes write. torch: the build that peers get."""

    console: Console
    quick: bool
    logs: Path
    torch: str
    goals: list[Goal] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Whatever was measured, by a name with dots; goes into the JSON file."""

    def rounds(self, number: int) -> int:
        """So many rounds, or a third of them in a quick run; never fewer than 3."""
        return max(3, number // 3) if self.quick else number

    @property
    def warmups(self) -> int:
        """Rounds that are not counted."""
        return 1 if self.quick else 3

    @contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """Say what is measured, and afterwards how long it took."""
        self.console.print(f"[dim]{what} ...[/dim]")
        began = time.monotonic()
        yield
        self.console.print(f"[dim]{what}: {time.monotonic() - began:.0f} s[/dim]")

    def keep(self, name: str, systems: Mapping[str, Steps]) -> None:
        """Keep series of seconds for the JSON file."""
        self.figures[name] = {
            system: {step: summary(series) for step, series in steps.items()} for system, steps in systems.items()
        }

    def show(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table whose first column is text and the others figures."""
        self.console.print(table(title, headings, rows))


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> Table:
    """A plain table; its first text_columns columns are flush left, the others flush right."""
    shown = Table(title=title, box=None, title_justify="left")
    for number, heading in enumerate(headings):
        shown.add_column(heading, justify="left" if number < text_columns else "right")
    for row in rows:
        shown.add_row(*row)
    return shown


def summary(series: Series) -> dict[str, float | int]:
    return {"median": series.median, "min": series.low, "max": series.high, "n": len(series.values)}


def in_ms(series: Series) -> str:
    """Median and range of seconds, in milliseconds."""
    return f"{series.median * 1e3:.2f} ({series.low * 1e3:.2f}..{series.high * 1e3:.2f})"


def in_times(series: Series) -> str:
    """Median and range of quotients."""
    return f"{series.median:.2f} ({series.low:.2f}..{series.high:.2f})"

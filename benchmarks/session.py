"""One run of the benchmarks: its number of rounds, its output, its results."""

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
    """A goal and its measurement. holds: None if it could not be measured; `measured` then says why."""

    name: str
    measured: str
    holds: bool | None
    value: float | None = None


@dataclass
class Session:
    """quick: fewer rounds, smaller growth. logs: folder for output of worker processes. torch: build for the peers."""

    console: Console
    quick: bool
    logs: Path
    torch: str
    goals: list[Goal] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """All measurements, by dotted name; written to the JSON file."""

    def rounds(self, number: int) -> int:
        """`number` rounds, or a third of them in a quick run; at least 3."""
        return max(3, number // 3) if self.quick else number

    @property
    def warmups(self) -> int:
        """Number of rounds that are not counted."""
        return 1 if self.quick else 3

    @contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """Print what is measured, and afterwards how long it took."""
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
        """Print a table: text in the first column, figures in the others."""
        self.console.print(table(title, headings, rows))


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> Table:
    """A plain table: the first text_columns columns are aligned left, the others right."""
    shown = Table(title=title, box=None, title_justify="left")
    for number, heading in enumerate(headings):
        shown.add_column(heading, justify="left" if number < text_columns else "right")
    for row in rows:
        shown.add_row(*row)
    return shown


def summary(series: Series) -> dict[str, float | int]:
    return {"median": series.median, "min": series.low, "max": series.high, "n": len(series.values)}


def in_ms(series: Series) -> str:
    """Format median and range of seconds, in milliseconds."""
    return f"{series.median * 1e3:.2f} ({series.low * 1e3:.2f}..{series.high * 1e3:.2f})"


def in_times(series: Series) -> str:
    """Format median and range of quotients."""
    return f"{series.median:.2f} ({series.low:.2f}..{series.high:.2f})"

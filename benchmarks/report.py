"""What a benchmark prints and keeps: the machine, tables of what was measured, and goals."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

import machine
from timing import Series, Steps, total

T = TypeVar("T")

TOTAL = "total"
_WIDTH = 160  # columns, if the output is a file


def arguments(doc: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def begin() -> Console:
    """A console on which the facts about the machine were printed."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    facts = (f"{name} {fact}" for name, fact in machine.describe().items())
    console.print(", ".join(facts), highlight=False, soft_wrap=True)
    return console


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> Table:
    """A plain table: the first text_columns columns are aligned left, the others right."""
    shown = Table(title=title, box=None, title_justify="left")
    for number, heading in enumerate(headings):
        shown.add_column(heading, justify="left" if number < text_columns else "right")
    for row in rows:
        shown.add_row(*row)
    return shown


def compare(console: Console, title: str, measured: Mapping[str, Steps], *, size_bytes: int = 0) -> None:
    """Print each step of each system: milliseconds, and how many times as long as the first system it takes.

    Ratios are medians of those of each round, if the systems took turns. With size_bytes, which each step
    moves, also the GB/s.
    """
    first, base = next(iter(measured.items()))
    headings = ["ms", "", "median", "p99", "least", "most", f"x {first}" if len(measured) > 1 else "", "GB/s"]
    rows = []
    for step, floor in base.items():
        for system, steps in measured.items():
            one, times = steps[step], ""
            if len(measured) > 1:
                paired = len(one.values) == len(floor.values)
                times = f"{one.over(floor).median if paired else one.median / floor.median:.2f}"
            shown = [_short(value * 1e3) for value in (one.median, one.p99, one.low, one.high)]
            moved = size_bytes * (len(base) - 1 if step == TOTAL else 1)
            rows.append([step, system, *shown, times, f"{moved / one.median / 1e9:.2f}"])
    columns = len(headings) if size_bytes else -1
    console.print(table(title, headings[:columns], [row[:columns] for row in rows], text_columns=2), "")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def in_ms(series: Series) -> str:
    """Median and range of seconds, in milliseconds."""
    return f"{series.median * 1e3:.2f} ({series.low * 1e3:.2f}..{series.high * 1e3:.2f})"


def in_times(series: Series) -> str:
    """Median and range of quotients."""
    return f"{series.median:.2f} ({series.low:.2f}..{series.high:.2f})"


def in_rate(series: Series, amount: float = 1.0, digits: int = 2) -> str:
    """Median and range of an amount a second."""
    median, low, high = (f"{amount / each:,.{digits}f}" for each in (series.median, series.high, series.low))
    return f"{median} ({low}..{high})"


def summary(series: Series) -> dict[str, float | int]:
    return {"median": series.median, "min": series.low, "max": series.high, "n": len(series.values)}


@dataclass(frozen=True)
class Goal:
    """A goal and its measurement. holds: None if it could not be measured; `measured` then says why."""

    name: str
    measured: str
    holds: bool | None
    value: float | None = None


@dataclass
class Session:
    """A run of several parts. quick: fewer rounds and rows. torch: the peers' build. volume: for data of servers."""

    console: Console
    quick: bool
    torch: str = ""
    volume: str = "/dev/shm"  # noqa: S108
    goals: list[Goal] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """All measurements, by dotted name; written to the JSON file."""

    def rounds(self, number: int) -> int:
        """`number` rounds, or a third of them in a quick run; at least 3."""
        return max(3, number // 3) if self.quick else number

    def pick(self, full: T, quick: T) -> T:
        return quick if self.quick else full

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

    def compare(self, name: str, title: str, measured: Mapping[str, Steps], *, size_bytes: int = 0) -> None:
        """Keep series, and print them with the sum of the steps."""
        self.keep(name, measured)
        sums = {name: {**steps, TOTAL: total(steps)} if len(steps) > 1 else steps for name, steps in measured.items()}
        compare(self.console, title, sums, size_bytes=size_bytes)

    def goal(self, name: str, measured: str, holds: bool | None, value: float | None = None) -> None:
        self.goals.append(Goal(name, measured, holds, value))

    def faster(self, title: str, ours: Series, peer: Series, least: float = 1.0) -> None:
        """The goal that ours takes at most a `least`-th of the peer's time, by the median of the rounds' ratios."""
        ratio = peer.over(ours)
        text = f"{in_times(ratio)} x: {in_ms(ours)} against {in_ms(peer)} ms"
        self.goal(title, text, ratio.median >= least, ratio.median)

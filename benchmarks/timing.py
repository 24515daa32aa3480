"""Time calls, and summarize many of them.

Systems that are compared take turns within each round, in an order that rotates from round to round, so other load on
the machine affects all of them alike. The garbage collector is off while a call is timed. Needs only the standard
library, because the environments of peers import it, too.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

Round = Callable[[], Mapping[str, "float | Sequence[float]"]]
"""One round of a system: the seconds of each of its steps, or of each call of a step."""


@dataclass(frozen=True)
class Series:
    """The measurements of the rounds, in order: seconds, or quotients of seconds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.values, n=100, method="inclusive")[98] if len(self.values) > 1 else self.median

    def over(self, other: Series) -> Series:
        """This series divided by the other, round by round."""
        return Series(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def plus(self, other: Series) -> Series:
        """The sum of both series, round by round."""
        return Series(tuple(a + b for a, b in zip(self.values, other.values, strict=True)))


Steps = dict[str, Series]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Suspend garbage collection until the end of the block."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds(call: Callable[[], T]) -> tuple[float, T]:
    """The seconds that a call took, and its result."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def timed(**steps: Callable[[], object]) -> dict[str, float]:
    """Make calls one after the other. Returns the seconds of each."""
    with undisturbed():
        return {name: seconds(call)[0] for name, call in steps.items()}


def repeated(call: Callable[[], object], times: int, between: Callable[[], object] = int) -> Series:
    """The seconds of each of many calls; something else happens before each."""
    found = []
    for _ in range(times):
        between()
        found.append(seconds(call)[0])
    return Series(tuple(found))


def alternate(systems: Mapping[str, Round], rounds: int, warmups: int) -> dict[str, Steps]:
    """Measure the steps of each system by name, over `rounds` rounds after `warmups` uncounted ones."""
    measured: dict[str, list[Mapping[str, float | Sequence[float]]]] = {name: [] for name in systems}
    names = list(systems)
    for number in range(warmups + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            measured[name].append(systems[name]())
    return {name: _by_step(steps[warmups:]) for name, steps in measured.items()}


def in_a_row(system: Round, times: int) -> Round:
    """Make a round of `times` rounds in sequence, as in a tight loop; it returns the medians of their steps."""
    return lambda: {step: series.median for step, series in _by_step([system() for _ in range(times)]).items()}


def total(steps: Steps) -> Series:
    """The sum of all steps, round by round."""
    found, *others = steps.values()
    for other in others:
        found = found.plus(other)
    return found


def _by_step(rounds: Sequence[Mapping[str, float | Sequence[float]]]) -> Steps:
    def values(step: str) -> Iterator[float]:
        for each in rounds:
            took = each[step]
            yield from (took,) if isinstance(took, float) else took

    return {step: Series(tuple(values(step))) for step in rounds[0]}

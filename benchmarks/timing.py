"""Timed calls, and what many of them amount to.

Systems that are compared take turns within each round, in an order that turns from round to round, so that what the
machine does meanwhile meets all of them alike. The garbage collector rests while a call is timed. Only the standard
library is needed, since peers' environments import this too.
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

Round = Callable[[], Mapping[str, float]]
"""One round of a system: the seconds that each of its steps took."""


@dataclass(frozen=True)
class Series:
    """What the rounds measured, in their order: seconds, or quotients of seconds."""

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

    def over(self, other: Series) -> Series:
        """Round by round, this one divided by the other."""
        return Series(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def plus(self, other: Series) -> Series:
        """Round by round, the sum of both."""
        return Series(tuple(a + b for a, b in zip(self.values, other.values, strict=True)))


Steps = dict[str, Series]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Collect no garbage before the block has ended."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds(call: Callable[[], T]) -> tuple[float, T]:
    """How long a call took, and what it returned."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def alternate(systems: Mapping[str, Round], rounds: int, warmups: int) -> dict[str, Steps]:
    """The steps of each system by its name, over so many rounds after so many that are not counted."""
    measured: dict[str, list[Mapping[str, float]]] = {name: [] for name in systems}
    names = list(systems)
    for number in range(warmups + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            measured[name].append(systems[name]())
    return {name: _by_step(steps[warmups:]) for name, steps in measured.items()}


def in_a_row(system: Round, times: int) -> Round:
    """A round of so many rounds in a row, as in a loop that does nothing else; the medians of their steps."""

    def rounds() -> Mapping[str, float]:
        steps = _by_step([system() for _ in range(times)])
        return {step: series.median for step, series in steps.items()}

    return rounds


def _by_step(rounds: Sequence[Mapping[str, float]]) -> Steps:
    return {step: Series(tuple(each[step] for each in rounds)) for step in rounds[0]}

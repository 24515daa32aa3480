"""Which rows a draw takes: whole arrays at a time, decided by a seed alone.

A draw is without replacement: one row after the other, each with a probability proportional to its weight among the
rows that are left. All are found at once: a row gets the key E / weight, where E is exponentially distributed, and the
rows with the smallest keys are drawn, in the order of their keys. (P. S. Efraimidis, P. G. Spirakis, "Weighted random
sampling with a reservoir", Information Processing Letters 97, 2006; their keys are exp(-key).)

Processors may differ in the last bit of a power, and a replay must draw the same rows. So weights have the precision
of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.values import BoolArray, Int64Array, Slots
from dataplane_server.core.rows.tag_columns import Float64Array

MOST_DRAWS = (1 << 32) - 1
"""Draws of a row are counted up to this number."""
_LEAST_WEIGHT = np.finfo(np.float32).tiny


class Sieve:
    """Rows that may be drawn, fewer with each condition. slots: those that are left."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._gone: list[tuple[str, Callable[[], str]]] = []

    def keep(self, fits: BoolArray, why: str, more: Callable[[], str] = str) -> None:
        """Keep the rows that fit. why: what is to be said of the others, after their number. more: makes the rest of
        that, if it is said.
        """
        gone = len(self.slots) - int(np.count_nonzero(fits))
        if gone:
            self.slots = self.slots[fits]
            self._gone.append((f"{gone} {why}", more))

    def why(self) -> list[str]:
        """What the rows that are gone lack."""
        return [why + more() for why, more in self._gone]


def is_priority(numbers: Float64Array) -> BoolArray:
    """Which numbers a row can be drawn by; NaN is none."""
    return np.asarray((numbers > 0) & np.isfinite(numbers))


def weights_of(priorities: Float64Array, exponent: float) -> Float64Array:
    """Proportional to the powers of priorities, of which there is at least one; the greatest is 1."""
    powers = (priorities / priorities.max()) ** exponent
    weights: Float64Array = np.maximum(powers.astype(np.float32), _LEAST_WEIGHT).astype(np.float64)
    return weights


def draw_weighted(weights: Float64Array, count: int, seed: int) -> tuple[Int64Array, Float64Array]:
    """Places of `count` rows, in the order in which they are drawn, and the probability of each in the first draw.
    weights: positive. count: at most as many as there are.
    """
    uniform = np.random.Generator(np.random.PCG64(seed)).random(len(weights))
    drawn = smallest(-np.log1p(-uniform) / weights, count)
    return drawn, weights[drawn] / weights.sum()


def smallest(keys: npt.NDArray[Any], count: int) -> Int64Array:
    """Places of the smallest keys, ascending."""
    places = np.argpartition(keys, count - 1)[:count]
    return places[np.argsort(keys[places])]

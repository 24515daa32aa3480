"""Sums, extremes and a histogram of numbers, made on their device; those of several ranks are added.

The histogram rounds each number toward zero to 7 significant bits; each result has a bin. So all histograms have the
same edges, quantiles are closer to zero by less than 1.6 %, and small integers, halves and powers of two are exact.
Numbers below 2**-24 share the bin of zero, and those from 2**24 on share the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.floating[Any]]

_DROPPED_BITS = 17  # of the 23 bits of a float32's fraction
_FIRST = (127 - 24) << 6  # the exponent and kept fraction of 2**-24, as a float32 has them
_SIDE = 48 << 6  # bins of the positive numbers
_BINS = 2 * _SIDE + 1
_LOWER = ((np.arange(_SIDE + 1, dtype=np.int32) + _FIRST) << _DROPPED_BITS).view(np.float32).astype(np.float64)
_EDGES = np.concatenate((-_LOWER[::-1], _LOWER))


@dataclass(frozen=True, eq=False)
class Distribution:
    """The finite numbers of a column.

    bins: counts, in the order of the numbers. counts: finite numbers, and others. ends: minimum, maximum; inf and -inf
    without numbers. sums: of the numbers, of their squares, and of what else the figures of the column need.
    """

    bins: Floats
    counts: Floats
    ends: tuple[float, float]
    sums: Floats

    def __add__(self, other: Distribution) -> Distribution:
        ends = min(self.ends[0], other.ends[0]), max(self.ends[1], other.ends[1])
        return Distribution(self.bins + other.bins, self.counts + other.counts, ends, self.sums + other.sums)

    def means(self) -> list[float]:
        """The sums by number; NaN without numbers."""
        return [float(total / (self.counts[0] or math.nan)) for total in self.sums]

    def quantile(self, q: float, *, absolute: bool = False) -> float:
        """The smallest number that a share q of them does not exceed, rounded as above; NaN without numbers.

        absolute: of the numbers without their signs. ValueError unless q is 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q: must be a share of 0 to 1, got {q}")
        folded = np.append(self.bins[_SIDE], self.bins[_SIDE + 1 :] + self.bins[:_SIDE][::-1])
        reached = np.cumsum(folded if absolute else self.bins) >= max(1, math.ceil(q * float(self.counts[0])))
        place = int(np.argmax(reached)) - (0 if absolute else _SIDE)
        value = float(_LOWER[abs(place) - 1]) if place else 0.0
        return math.copysign(value, place) if self.counts[0] else math.nan

    def histogram(self, most: int = 64) -> tuple[Floats, Floats]:
        """Counts and edges as of numpy.histogram, in at most this many bins, which are narrow near zero."""
        used = np.flatnonzero(self.bins)
        first, last = (used[0], used[-1]) if len(used) else (_SIDE, _SIDE)
        starts = np.arange(first, last + 1, math.ceil((last + 1 - first) / most))
        return np.add.reduceat(self.bins[: last + 1], starts), _EDGES[[*starts, last + 1]]

    def figures(self) -> dict[str, float]:
        """By name; std is that of the population."""
        count, non_finite = self.counts.tolist()
        mean, square, *_ = self.means()
        low, high = self.ends if count else (math.nan, math.nan)
        figures = {"count": count, "non_finite": non_finite, "mean": mean, "min": low, "max": high}
        figures["std"] = float(np.sqrt(np.maximum(square - mean**2, 0)))
        return figures | {f"p{percent}": self.quantile(percent / 100) for percent in (10, 50, 90)}


def summarise(values: Tensor, counted: Tensor, *sums: Tensor) -> Tensor:
    """What `unpack` takes, in float64 on the device of the flat values, which is not waited for.

    counted: bools. sums: what to append to the distribution's sums.
    """
    if not len(values):
        values, counted = values.new_zeros(1), counted.new_zeros(1)
    finite, values = values.isfinite() & counted, values.double()
    low, high = torch.where(finite, values, math.inf).amin(), torch.where(finite, values, -math.inf).amax()
    values = torch.where(finite, values, 0.0)
    places = ((values.abs().float().view(torch.int32) >> _DROPPED_BITS) - _FIRST + 1).clamp(0, _SIDE).long()
    bins = torch.zeros(_BINS, dtype=torch.int64, device=values.device)
    bins.index_add_(0, _SIDE + torch.where(values < 0, -places, places), finite.long())
    count = finite.sum()
    figures = [count, counted.sum() - count, low, high, values.sum(), values.square().sum(), *sums]
    return torch.cat([bins.double(), torch.stack([figure.double() for figure in figures])])


def unpack(summary: Floats) -> Distribution:
    bins, counts, ends, sums = np.split(summary, [_BINS, _BINS + 2, _BINS + 4])
    return Distribution(bins, counts, (float(ends[0]), float(ends[1])), sums)

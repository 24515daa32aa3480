"""Whether a curve is flat.

The first third of a run is warm-up and is not judged. Of the rest, the growth is the median slope between its samples
(Theil and Sen) times its length. A curve is flat if it grows by no more than its measure allows, in the measure's unit;
it may fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Measure:
    """allowed: growth of a curve that is flat."""

    name: str
    unit: str
    allowed: float


MEASURES = (
    Measure("resident memory", "MiB", 8.0),
    Measure("anonymous memory", "MiB", 8.0),
    Measure("threads", "", 1.0),
    Measure("descriptors", "", 2.0),
    Measure("arena files", "", 0.0),
)
WARM_UP = 1 / 3


@dataclass(frozen=True)
class Fit:
    """Of the judged part, in the measure's unit."""

    median: float
    growth: float


def fit(seconds: Sequence[float], values: Sequence[float]) -> Fit:
    """seconds: of each sample, ascending, since the start; at least two of them after the warm-up."""
    t, y = np.asarray(seconds), np.asarray(values)
    judged = t >= t[-1] * WARM_UP
    t, y = t[judged], y[judged]
    first, second = np.triu_indices(len(t), 1)
    slope = float(np.median((y[second] - y[first]) / (t[second] - t[first])))
    return Fit(float(np.median(y)), slope * float(t[-1] - t[0]))


def is_flat(found: Fit, measure: Measure) -> bool:
    return found.growth <= measure.allowed

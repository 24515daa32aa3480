"""Metrics of a loss: 0-d tensors while computed, Python floats when returned, moved in one transfer.

Metrics are shares that are summed, except those whose names end in `_min` or `_max`. If nothing is masked in, a minimum
is +inf and a maximum -inf; these sentinels are ignored beside real values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def as_floats(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Convert all to floats with one synchronisation with the device."""
    values = torch.stack([value.detach().to(torch.float64) for value in metrics.values()]).tolist()
    return dict(zip(metrics, values, strict=True))


def masked_min(values: Tensor, mask: Tensor) -> Tensor:
    """The smallest masked value; +inf when there is none."""
    return _with_sentinel(values, mask, math.inf).min()


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """The largest masked value; -inf when there is none."""
    return _with_sentinel(values, mask, -math.inf).max()


def _with_sentinel(values: Tensor, mask: Tensor, sentinel: float) -> Tensor:
    """The masked-in values and one sentinel, so that the result is never empty."""
    chosen = values.detach().masked_fill(mask == 0, sentinel).flatten()
    return torch.cat([chosen, chosen.new_full((1,), sentinel)])


def merge_metrics(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge metrics of parts: sums, and for names in `_min` or `_max` the least or greatest finite value.

    A part need not have every metric.
    """
    gathered: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in part.items():
            gathered.setdefault(name, []).append(value)
    return {name: _merge(name, values) for name, values in gathered.items()}


def _merge(name: str, values: Sequence[Any]) -> Any:
    if not name.endswith(("_min", "_max")):
        return sum(values)
    choose: Callable[..., Any] = min if name.endswith("_min") else max
    sentinel = math.inf if choose is min else -math.inf
    return choose((value for value in values if math.isfinite(value)), default=sentinel)

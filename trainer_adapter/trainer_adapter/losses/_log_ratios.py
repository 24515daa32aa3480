"""Ratios of probabilities from their logarithms, kept finite.

In float32 exp overflows at 88. An infinite ratio would do harm even where a clip chooses the other branch: its gradient
there is 0 * inf, which is NaN, and one token would end a training run.
"""

from __future__ import annotations

from torch import Tensor

_LARGEST = 20.0  # a ratio of 4.9e8, beyond anything that training can make use of


def cut_off(log_ratios: Tensor) -> Tensor:
    """`log_ratios` within -20 and 20; the gradient beyond is 0."""
    return log_ratios.clamp(-_LARGEST, _LARGEST)


def exp_of_log_ratio(log_ratios: Tensor) -> Tensor:
    """The ratios, in the same shape, cut off likewise."""
    return cut_off(log_ratios).exp()

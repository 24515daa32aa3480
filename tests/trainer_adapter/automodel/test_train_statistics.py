"""Clipping and statistics of a single rank."""

from __future__ import annotations

import math

import pytest
import torch

from trainer_adapter.automodel.train import clip_grad_norm


def with_gradient(values: list[float], dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.zeros(len(values), dtype=dtype))
    parameter.grad = torch.tensor(values, dtype=dtype)
    return parameter


@pytest.mark.parametrize(("max_norm", "scale"), [(2.5, 0.5), (5.0, 1.0), (6.0, 1.0), (None, 1.0)])
def test_gradients_are_scaled_down_to_the_largest_norm_and_never_up(max_norm: float | None, scale: float) -> None:
    one, other = with_gradient([3.0]), with_gradient([0.0, 4.0], torch.float64)
    norm = clip_grad_norm([one, other], max_norm)
    assert (norm.item(), norm.dtype, norm.shape) == (5.0, torch.float32, ())
    assert one.grad is not None
    assert other.grad is not None
    assert [*one.grad.tolist(), *other.grad.tolist()] == [3 * scale, 0.0, 4 * scale]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_reported_and_scales_nothing(value: float) -> None:
    broken, sound = with_gradient([value]), with_gradient([4.0])
    assert not clip_grad_norm([broken, sound], 1.0).isfinite()
    assert sound.grad is not None
    assert sound.grad.tolist() == [4.0]

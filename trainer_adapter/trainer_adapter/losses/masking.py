"""Masks, and the mean that normalises every loss.

Masked-out entries contribute exactly 0 to values and gradients, even if they are infinite or NaN. Masking the result is
not enough for that (0 * NaN is NaN, also in a backward pass): losses mask their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_TINY = 1e-8


def masked_mean(values: Tensor, mask: Tensor, factor: Tensor | float) -> Tensor:
    """This part's share, sum(values * mask) / (factor + 1e-8), of a mean over `factor` masked values.

    values: any shape.
    mask: the same shape, bool or weights.
    factor: the count over the global batch (0 gives 0).
    Returns 0-d, in the dtype of `values`.
    """
    kept = values.masked_fill(mask == 0, 0.0) * mask
    return (kept.sum() / (factor + _TINY)).to(values.dtype)


def row_means(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of each row's masked values: [B,T] -> [B]; 0 for a row without any."""
    return row_sums(values, mask) / mask.sum(dim=1).clamp(min=_TINY)


def row_sums(values: Tensor, mask: Tensor) -> Tensor:
    """The sum of each row's masked values: [B,T] -> [B]."""
    return (values.masked_fill(mask == 0, 0.0) * mask).sum(dim=1)


def token_weights(data: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> Tensor:
    """token_mask * sample_mask without column 0, which nothing predicts: [B,S-1]."""
    tokens, samples = require(data, "token_mask"), require(data, "sample_mask")
    return tokens[:, 1:].to(dtype) * samples[:, None].to(dtype)


def counts(data: Mapping[str, Any], mask: Tensor) -> dict[str, Tensor]:
    """The metrics `num_unmasked_tokens` and `num_valid_samples` of a microbatch with these token_weights."""
    return {"num_unmasked_tokens": mask.sum(), "num_valid_samples": require(data, "sample_mask").sum()}


def masked_column(data: Mapping[str, Any], key: str, mask: Tensor) -> Tensor:
    """Column `key` [B,S] at predicted tokens: [B,S-1] in the dtype of `mask`, 0 where `mask` is 0.

    Raises KeyError if the batch lacks it, ValueError if it has another shape.
    """
    column = require(data, key)
    expected = require(data, "token_mask").shape
    if column.shape != expected:
        raise ValueError(f"{key} must have the shape of token_mask, {list(expected)}, not {list(column.shape)}")
    return column[:, 1:].to(mask.dtype).masked_fill(mask == 0, 0.0)


def require(data: Mapping[str, Any], key: str) -> Tensor:
    """Return column `key`; KeyError naming it and the available ones if it is missing."""
    if key not in data:
        raise KeyError(f"the loss needs {key!r}; the batch has {sorted(data)}")
    column: Tensor = data[key]
    return column

"""Log-probabilities of given tokens from logits, without a float32 copy of the logits.

`log_softmax` followed by `gather` keeps a float32 tensor as large as the logits for the backward pass; with large
vocabularies that is most of a step's memory. Here the backward pass recomputes the softmax from the logits, some
positions at a time. Positions whose result is unused get a gradient of exactly 0, even if their logits are not finite:
a NaN in a masked row does not reach the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_POSITIONS_AT_ONCE = 1024  # 600 MB of float32 with a vocabulary of 150 thousand


def next_token_logprobs(logits: Tensor, input_ids: Tensor) -> Tensor:
    """Log-probability of every token except the first, given the ones before it: [B,S-1] float32.

    logits: [B,S',V] with S' >= S; position i predicts token i + 1, and positions after S - 2 are ignored.
    input_ids: [B,S] int64.
    Computed in float32, or in float64 for float64 logits.
    """
    rows, width = input_ids.shape
    if logits.ndim != 3 or logits.shape[0] != rows or logits.shape[1] < width:
        raise ValueError(f"logits of shape {list(logits.shape)} do not cover input_ids of {list(input_ids.shape)}")
    # The last positions predict no given token; slicing them off would copy the logits of the batch.
    chosen = torch.nn.functional.pad(input_ids[:, 1:], (0, logits.shape[1] - max(width - 1, 0)))
    flat: Tensor = _ChosenLogprobs.apply(logits.flatten(0, 1), chosen.flatten())  # type: ignore[no-untyped-call]
    return flat.view(chosen.shape)[:, : max(width - 1, 0)]


class _ChosenLogprobs(torch.autograd.Function):
    """log_softmax(logits)[n, chosen[n]] for each n: logits [N,V], chosen [N] -> [N]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, chosen: Tensor) -> Tensor:
        """Saves the logits and, for each position, their peak and log(sum(exp(logits - peak))).

        The two are not added: beside a large peak the small term would lose its digits.
        """
        peak = logits.amax(dim=-1).to(torch.promote_types(logits.dtype, torch.float32))
        log_sum = torch.empty_like(peak)
        for part in _parts(logits.shape[0]):
            log_sum[part] = (logits[part] - peak[part, None]).exp_().sum(dim=-1).log_()
        ctx.save_for_backward(logits, chosen, peak, log_sum)
        return logits.gather(1, chosen[:, None]).squeeze(1) - peak - log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient of log p(chosen) with respect to the logits: onehot(chosen) - softmax(logits)."""
        logits, chosen, peak, log_sum = ctx.saved_tensors
        result = torch.empty_like(logits)
        for part in _parts(logits.shape[0]):
            outer = gradient[part, None]
            softmax = (logits[part] - peak[part, None]).sub_(log_sum[part, None]).exp_()
            share = softmax.mul_(-outer).scatter_add_(1, chosen[part, None], outer)
            result[part] = share.masked_fill_(outer == 0, 0.0)
        return result, None


def _parts(positions: int) -> list[slice]:
    return [slice(start, start + _POSITIONS_AT_ONCE) for start in range(0, positions, _POSITIONS_AT_ONCE)]

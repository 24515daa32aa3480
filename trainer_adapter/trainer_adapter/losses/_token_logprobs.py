"""Log-probabilities of given tokens from logits, without a float32 copy of the logits.

`log_softmax` followed by `gather` keeps a float32 tensor as large as the logits for the backward pass; with large
vocabularies that is most of a step's memory. Here the backward pass recomputes the softmax from the logits, some
positions at a time. Positions whose result is unused get a gradient of exactly 0, even if their logits are not finite:
a NaN in a masked row does not reach the weights.

The vocabulary may be divided over ranks. With m the largest logit and Z the sum of exp(logit - m), both over all ranks,
the log-probability of token t is logit[t] - m - log Z. Only the rank that holds t knows the first term. So the ranks
exchange one MAX and one SUM of two numbers for each position instead of V, and nothing in the backward pass: all ranks
use the result in the same way and have the same gradient for it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

POSITIONS_AT_ONCE = 1024
"""600 MB of float32 with a vocabulary of 150 thousand."""


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
    return chosen_logprobs(logits, chosen)[:, : max(width - 1, 0)]


def chosen_logprobs(
    logits: Tensor,
    chosen: Tensor,
    group: ProcessGroup | None = None,
    at_once: int = POSITIONS_AT_ONCE,
    temperature: float = 1.0,
) -> Tensor:
    """log_softmax(logits / temperature) at the chosen entries: logits [B,S,V], chosen [B,S] -> [B,S].

    group: the ranks that hold the other parts of the vocabulary; entries that are not in [0, V) are theirs. None: there
    are no others.
    at_once: positions in float32 at the same time.
    """
    flat: Tensor = _ChosenLogprobs.apply(logits.flatten(0, 1), chosen.flatten(), group, at_once, temperature)  # type: ignore[no-untyped-call]
    return flat.view(chosen.shape)


class _ChosenLogprobs(torch.autograd.Function):
    """log_softmax(logits / temperature)[n, chosen[n]] for each n: logits [N,V], chosen [N] -> [N]."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, chosen: Tensor, group: ProcessGroup | None, at_once: int, temperature: float
    ) -> Tensor:
        """Saves the logits and, for each position, their peak and log(sum(exp(logits - peak))).

        The two are not added: beside a large peak the small term would lose its digits.
        """
        peak = logits.amax(dim=-1).to(torch.promote_types(logits.dtype, torch.float32))
        if group is not None:
            torch.distributed.all_reduce(peak, torch.distributed.ReduceOp.MAX, group)
        is_here = (chosen >= 0) & (chosen < logits.shape[1])
        here = chosen.where(is_here, 0)
        sums = torch.empty(2, *peak.shape, dtype=peak.dtype, device=peak.device)
        for part in _parts(logits.shape[0], at_once):
            sums[0, part] = _divided(logits[part] - peak[part, None], temperature).exp_().sum(dim=-1)
        sums[1] = ((logits.gather(1, here[:, None]).squeeze(1) - peak) / temperature).where(is_here, 0.0)
        if group is not None:
            torch.distributed.all_reduce(sums, group=group)
        log_sum = sums[0].log()
        ctx.save_for_backward(logits, here, is_here, peak, log_sum)
        ctx.at_once, ctx.temperature = at_once, temperature
        return sums[1] - log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        """The gradient of log p(chosen) with respect to the logits: onehot(chosen) - softmax(logits)."""
        logits, here, is_here, peak, log_sum = ctx.saved_tensors
        result = torch.empty_like(logits)
        for part in _parts(logits.shape[0], ctx.at_once):
            outer = gradient[part, None] / ctx.temperature
            scaled = _divided(logits[part] - peak[part, None], ctx.temperature)
            softmax = scaled.sub_(log_sum[part, None]).exp_()
            share = softmax.mul_(-outer).scatter_add_(1, here[part, None], outer * is_here[part, None])
            result[part] = share.masked_fill_(outer == 0, 0.0)
        return result, None, None, None, None


def _divided(piece: Tensor, temperature: float) -> Tensor:
    """In place."""
    return piece if temperature == 1.0 else piece.div_(temperature)


def _parts(positions: int, at_once: int) -> list[slice]:
    return [slice(start, start + at_once) for start in range(0, positions, at_once)]

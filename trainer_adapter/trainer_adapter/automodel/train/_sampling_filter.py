"""The tokens that top-k and top-p sampling could have drawn: what they rule out has probability 0.

A policy that draws from the filtered distribution has log-probabilities under the filtered distribution. Ruled-out
logits become -inf and get no gradient. top-p is applied to what top-k left, as samplers do it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer_adapter.automodel.config import TrainingSamplingParams

CHUNK = 256
"""Positions that are filtered at once. Sorting takes several times the memory of the logits it sorts."""


def is_filtering(params: TrainingSamplingParams | None) -> bool:
    return params is not None and (_filters_by_rank(params.top_k) or _filters_by_probability(params.top_p))


def filtered(logits: Tensor, params: TrainingSamplingParams) -> Tensor:
    """Logits [..., V] with -inf for what is ruled out. The vocabulary is whole, the temperature has been applied."""
    if params.top_k is not None and _filters_by_rank(params.top_k):
        logits = _largest(logits, params.top_k)
    if params.top_p is not None and _filters_by_probability(params.top_p):
        logits = _nucleus(logits, params.top_p)
    return logits


def _filters_by_rank(top_k: int | None) -> bool:
    return top_k is not None and top_k > 0


def _filters_by_probability(top_p: float | None) -> bool:
    return top_p is not None and top_p != 1.0


def _largest(logits: Tensor, top_k: int) -> Tensor:
    """Logits equal to the k-th largest are all kept."""
    smallest_kept = logits.detach().topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest_kept, float("-inf"))


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """A token is kept when it and all less likely ones together make more than 1 - top_p; the likeliest always."""
    ascending, order = logits.detach().sort(dim=-1)
    is_kept = ascending.softmax(dim=-1, dtype=torch.float32).cumsum(dim=-1) > 1 - top_p
    is_kept[..., -1] = True
    return logits.masked_fill(~is_kept.scatter(-1, order, is_kept), float("-inf"))

"""The filter of top-k and top-p sampling: excluded tokens have probability 0.

A policy that samples from the filtered distribution has its log-probabilities under the filtered distribution. Excluded
logits become -inf and get no gradient. top-p is applied after top-k, as samplers do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer_adapter.automodel.config import TrainingSamplingParams

CHUNK = 256
"""Positions that are filtered at once. Sorting takes several times the memory of its logits."""


def is_filtering(params: TrainingSamplingParams | None) -> bool:
    return params is not None and (_filters_by_rank(params.top_k) or _filters_by_probability(params.top_p))


def filter_logits(logits: Tensor, params: TrainingSamplingParams) -> Tensor:
    """Return logits [..., V] with -inf for excluded tokens. The vocabulary is whole; the temperature has been
    applied.
    """
    if params.top_k is not None and _filters_by_rank(params.top_k):
        logits = _keep_top_k(logits, params.top_k)
    if params.top_p is not None and _filters_by_probability(params.top_p):
        logits = _keep_top_p(logits, params.top_p)
    return logits


def _filters_by_rank(top_k: int | None) -> bool:
    return top_k is not None and top_k > 0


def _filters_by_probability(top_p: float | None) -> bool:
    return top_p is not None and top_p != 1.0


def _keep_top_k(logits: Tensor, top_k: int) -> Tensor:
    """Logits equal to the k-th largest are all kept."""
    smallest_kept = logits.detach().topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest_kept, float("-inf"))


def _keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Keep a token if it and all less likely ones together exceed 1 - top_p; always keep the most likely one."""
    ascending, order = logits.detach().sort(dim=-1)
    is_kept = ascending.softmax(dim=-1, dtype=torch.float32).cumsum(dim=-1) > 1 - top_p
    is_kept[..., -1] = True
    return logits.masked_fill(~is_kept.scatter(-1, order, is_kept), float("-inf"))

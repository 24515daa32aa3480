"""The filter of top-k and top-p sampling: excluded tokens have probability 0.

A policy that samples from the filtered distribution has its log-probabilities under the filtered distribution. Excluded
logits become -inf and get no gradient. top-p is applied after top-k, as samplers do; both are those of transformers.
"""

from __future__ import annotations

from torch import Tensor

from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.packages import require_transformers

CHUNK = 256
"""Positions that are filtered at once. Sorting takes several times the memory of its logits."""


def is_filtering(params: TrainingSamplingParams | None) -> bool:
    return params is not None and (_filters_by_rank(params.top_k) or _filters_by_probability(params.top_p))


def filter_logits(logits: Tensor, params: TrainingSamplingParams, temperature: float = 1.0) -> Tensor:
    """Return float32 logits [..., V], divided by the temperature, with -inf for excluded tokens. The vocabulary is
    whole.
    """
    transformers = require_transformers()
    rows = logits.flatten(0, -2).float() / temperature
    if _filters_by_rank(params.top_k):
        rows = transformers.TopKLogitsWarper(params.top_k)(None, rows)
    if _filters_by_probability(params.top_p):
        rows = transformers.TopPLogitsWarper(params.top_p)(None, rows)
    filtered: Tensor = rows.view(logits.shape)
    return filtered


def _filters_by_rank(top_k: int | None) -> bool:
    return top_k is not None and top_k > 0


def _filters_by_probability(top_p: float | None) -> bool:
    return top_p is not None and top_p != 1.0

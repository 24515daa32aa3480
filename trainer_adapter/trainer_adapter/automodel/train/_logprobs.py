"""Log-probabilities of the next tokens, from logits that may be sharded over ranks.

Computed in float32. Computing a chunk of positions at a time gives the same numbers with less peak memory, because each
position is normalised by itself.

A policy that samples with top-k and top-p has its log-probabilities under the filtered distribution. Excluded logits
become -inf and get no gradient. top-p is applied after top-k, as samplers do; both are those of transformers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.packages import require_transformers
from trainer_adapter.automodel.parallel.sequence import SequenceShard
from trainer_adapter.automodel.parallel.vocab import VocabShard, vocab_shard
from trainer_adapter.losses._token_logprobs import POSITIONS_AT_ONCE

_FILTERED_AT_ONCE = 256
"""Positions. Sorting takes several times the memory of its logits."""


def next_token_logprobs(
    logits: Tensor,
    input_ids: Tensor,
    sequence: SequenceShard | None = None,
    sampling_params: TrainingSamplingParams | None = None,
    chunk_size: int | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """[B,S-1] float32: column i is the log-probability of token i + 1 given those before it. Differentiable.

    logits: [B,S,V], or this rank's positions of them if `sequence` is given; a DTensor may be sharded along V.
    input_ids: [B,S] int64, always whole.
    sampling_params: only top_k and top_p are used; a token that they exclude has log-probability -inf.
    chunk_size: positions at a time; None: a default number.
    temperature: logits are divided by it.
    """
    shard = vocab_shard(logits)
    if sequence is not None:
        own = _logprobs(shard, sequence.next_tokens(input_ids), sampling_params, chunk_size, temperature)
        return sequence.gather(own)[:, :-1]
    # The last position predicts no given token; slicing it off would copy the logits.
    last = max(input_ids.shape[1] - 1, 0)
    tokens = torch.nn.functional.pad(input_ids[:, 1:], (0, logits.shape[1] - last))
    return _logprobs(shard, tokens, sampling_params, chunk_size, temperature)[:, :last]


def _logprobs(
    shard: VocabShard,
    tokens: Tensor,
    params: TrainingSamplingParams | None,
    chunk_size: int | None,
    temperature: float,
) -> Tensor:
    """[B,P] float32: the log-probability of each of tokens [B,P] at its position of the shard."""
    if params is None or not is_filtering(params):
        return shard.logprobs(tokens, chunk_size or POSITIONS_AT_ONCE, temperature)
    step = min(chunk_size or _FILTERED_AT_ONCE, _FILTERED_AT_ONCE)
    parts = [slice(start, start + step) for start in range(0, tokens.shape[1], step)]
    pieces = [VocabShard(shard.own[:, part], shard.vocab_size, shard.group) for part in parts]
    found = [_filtered(piece, tokens[:, part], params, temperature) for piece, part in zip(pieces, parts, strict=True)]
    return torch.cat(found, dim=1)


def _filtered(shard: VocabShard, tokens: Tensor, params: TrainingSamplingParams, temperature: float) -> Tensor:
    transformers = require_transformers()
    logits = shard.gather()  # the filter needs the whole vocabulary
    rows = logits.flatten(0, -2).float() / temperature
    if _filters_by_rank(params.top_k):
        rows = transformers.TopKLogitsWarper(params.top_k)(None, rows)
    if _filters_by_probability(params.top_p):
        rows = transformers.TopPLogitsWarper(params.top_p)(None, rows)
    return VocabShard(rows.view(logits.shape), shard.vocab_size, None).logprobs(tokens)


def is_filtering(params: TrainingSamplingParams | None) -> bool:
    return params is not None and (_filters_by_rank(params.top_k) or _filters_by_probability(params.top_p))


def _filters_by_rank(top_k: int | None) -> bool:
    return top_k is not None and top_k > 0


def _filters_by_probability(top_p: float | None) -> bool:
    return top_p is not None and top_p != 1.0

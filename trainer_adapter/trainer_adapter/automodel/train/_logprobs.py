"""Log-probabilities of the next tokens, from logits that may be sharded over ranks.

Computed in float32. Computing a chunk of positions at a time gives the same numbers with less peak memory, because each
position is normalised by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.parallel.sequence import SequenceShard
from trainer_adapter.automodel.parallel.vocab import VocabShard, vocab_shard
from trainer_adapter.automodel.train import _sampling_filter
from trainer_adapter.losses._token_logprobs import POSITIONS_AT_ONCE


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
    if params is None or not _sampling_filter.is_filtering(params):
        return shard.logprobs(tokens, chunk_size or POSITIONS_AT_ONCE, temperature)
    step = min(chunk_size or _sampling_filter.CHUNK, _sampling_filter.CHUNK)
    parts = [slice(start, start + step) for start in range(0, tokens.shape[1], step)]
    return torch.cat(
        [_filtered(shard.piece(part.start, part.stop), tokens[:, part], params, temperature) for part in parts], dim=1
    )


def _filtered(shard: VocabShard, tokens: Tensor, params: TrainingSamplingParams, temperature: float) -> Tensor:
    logits = _sampling_filter.filter_logits(shard.gather(), params, temperature)  # it needs the whole vocabulary
    return VocabShard(logits, shard.vocab_size, None).logprobs(tokens)

"""Negative log-likelihood of the masked tokens: supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trainer_adapter.losses._interface import LossInputType, LossResult, LossType
from trainer_adapter.losses.masking import counts, masked_mean, token_weights
from trainer_adapter.losses.metrics import as_floats


class NLLLoss:
    """-mean of log p(token | tokens before it) over the masked tokens of the global batch (maximum likelihood).

    A token that top_k or top_p excludes has the log-probability -inf and counts as masked out, but not for the divisor.
    """

    loss_type = LossType.TOKEN_LEVEL
    input_type = LossInputType.LOGPROB

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Mapping[str, Any],
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> LossResult:
        """next_token_logprobs: [B,S-1]. data: `token_mask` [B,S], `sample_mask` [B]."""
        given = token_weights(data, next_token_logprobs.dtype)
        mask = given.masked_fill(next_token_logprobs.detach().isneginf(), 0.0)
        loss = -masked_mean(next_token_logprobs, mask, global_valid_toks)
        return loss, as_floats({"loss": loss, **counts(data, mask)})

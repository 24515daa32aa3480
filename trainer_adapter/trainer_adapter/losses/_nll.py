"""Negative log-likelihood of the masked tokens: supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trainer_adapter.losses._interface import LossInputType, LossResult, LossType
from trainer_adapter.losses.masking import counts, masked_mean, token_weights
from trainer_adapter.losses.metrics import as_floats


class NLLLoss:
    """-mean of log p(token | tokens before it) over the masked tokens of the global batch (maximum likelihood)."""

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
        mask = token_weights(data, next_token_logprobs.dtype)
        loss = -masked_mean(next_token_logprobs, mask, global_valid_toks)
        return loss, as_floats({"loss": loss, **counts(data, mask)})

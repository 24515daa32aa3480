"""The clipped policy-gradient loss of GRPO, token by token.

With ratio r = exp(logprob - prev_logprob) and advantage A, a token's loss is

    max(-A * r, -A * clamp(r, 1 - clip_low, 1 + clip_high))

so that a token already pushed further than the clip range gives no more gradient in that direction. `clip_high` may be
wider than `clip_low`: rare tokens of good samples keep room to grow (the asymmetric clip of DAPO, arXiv:2503.14476).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from logprobs import global_mean, response_mask, token_logprobs


@dataclass(frozen=True)
class ClippedPolicyLoss:
    """Calls like every loss of the trainer: logits and a microbatch in, `(loss, metrics)` out."""

    clip_low: float
    clip_high: float

    def __call__(
        self,
        next_token_logits: Tensor,
        data: Mapping[str, Tensor],
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> tuple[Tensor, dict[str, float]]:
        """`next_token_logits` [B,S,V], already divided by the sampling temperature.

        `data` holds `input_ids`, `token_mask`, `prev_logprobs` and `advantages`, all [B,S], and `sample_mask` [B].
        Loss and mean metrics are this microbatch's shares: summed over microbatches and ranks they are global means.
        """
        mask = response_mask(data["token_mask"], data["sample_mask"])
        logprobs = token_logprobs(next_token_logits, data["input_ids"])
        ratio = (logprobs - data["prev_logprobs"]).masked_fill(~mask, 0.0).exp()
        clamped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        advantages = data["advantages"]
        loss = global_mean(torch.maximum(-advantages * ratio, -advantages * clamped), mask, global_valid_toks)
        metrics = {
            "loss": loss.item(),
            "probs_ratio": global_mean(ratio.detach(), mask, global_valid_toks).item(),
            "clipped_fraction": global_mean((ratio != clamped).float(), mask, global_valid_toks).item(),
            "num_unmasked_tokens": float(mask.sum()),
            "num_valid_samples": float(data["sample_mask"].sum()),
        }
        return loss, metrics

"""Direct preference optimisation (arXiv:2305.18290): of two answers to a prompt, make the chosen one likelier.

Rows come in pairs: row 2i is the chosen answer, row 2i + 1 the rejected one, both valid or both invalid. With R = sum
over a row's masked tokens of logprob - reference_logprob, a pair's loss is

    -log sigmoid(beta * (R_chosen - R_rejected)),

and its mean is over the valid pairs of the global batch, which are half its valid rows. R can be a mean over the tokens
instead, so that length gives no advantage (as in arXiv:2405.14734). The optional SFT term is the negative
log-likelihood of the chosen row, summed or averaged over its tokens; it prevents chosen answers from becoming less
likely together with the rejected ones (arXiv:2404.19733).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import logsigmoid

from trainer_adapter.losses import LossInputType, LossResult, LossType
from trainer_adapter.losses.masking import masked_column, masked_mean, require, row_means, row_sums, token_weights
from trainer_adapter.losses.metrics import as_floats


@dataclass(frozen=True)
class DPOOptions:
    """Options of DPOLoss.

    reference_policy_kl_penalty: beta.
    preference_loss_weight, sft_loss_weight: weights of the two terms; 0 disables a term.
    preference_average_log_probs, sft_average_log_probs: mean over a row's tokens instead of their sum.
    """

    reference_policy_kl_penalty: float = 0.05
    preference_loss_weight: float = 1.0
    sft_loss_weight: float = 0.0
    preference_average_log_probs: bool = False
    sft_average_log_probs: bool = False


class DPOLoss:
    """The loss that the module's docstring defines."""

    loss_type = LossType.SEQUENCE_LEVEL
    input_type = LossInputType.LOGPROB
    rows_together = 2

    def __init__(self, options: DPOOptions | None = None) -> None:
        self._options = options or DPOOptions()

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Mapping[str, Any],
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> LossResult:
        """next_token_logprobs: [2P,S-1]. data: `token_mask` and `reference_policy_logprobs` [2P,S], `sample_mask` [2P].

        Metrics, as means over pairs: `loss`, `preference_loss`, `sft_loss`, `accuracy` (pairs whose chosen row has the
        greater reward), `rewards_chosen_mean` and `rewards_rejected_mean` (beta * R). `num_valid_samples` counts rows.

        Raises ValueError for an odd number of rows.
        """
        if next_token_logprobs.shape[0] % 2:
            raise ValueError(f"DPO needs pairs of rows (chosen, rejected), got {next_token_logprobs.shape[0]} rows")
        mask = token_weights(data, next_token_logprobs.dtype)
        rewards = self._rewards(next_token_logprobs - masked_column(data, "reference_policy_logprobs", mask), mask)
        samples = require(data, "sample_mask").to(rewards.dtype)
        chosen, rejected = rewards[::2], rewards[1::2]
        means = {
            "preference_loss": -logsigmoid(chosen - rejected),
            "sft_loss": -self._sft_logprobs(next_token_logprobs[::2], mask[::2]),
            "accuracy": (chosen > rejected).to(rewards.dtype),
            "rewards_chosen_mean": chosen,
            "rewards_rejected_mean": rejected,
        }
        pairs = samples[::2] * samples[1::2]
        metrics = {name: masked_mean(value, pairs, global_valid_seqs / 2) for name, value in means.items()}
        loss = self._options.preference_loss_weight * metrics["preference_loss"]
        loss = loss + self._options.sft_loss_weight * metrics["sft_loss"]
        return loss, as_floats({"loss": loss, **metrics, "num_valid_samples": samples.sum()})

    def _rewards(self, log_ratios: Tensor, mask: Tensor) -> Tensor:
        over_row = row_means if self._options.preference_average_log_probs else row_sums
        return self._options.reference_policy_kl_penalty * over_row(log_ratios, mask)

    def _sft_logprobs(self, logprobs: Tensor, mask: Tensor) -> Tensor:
        over_row = row_means if self._options.sft_average_log_probs else row_sums
        return over_row(logprobs, mask)

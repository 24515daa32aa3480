"""The clipped policy-gradient loss of PPO, GRPO, DAPO and GSPO, selected by options.

Per token, with ratio r = exp(logprob - prev_logprob) and advantage A:

- clip (PPO, arXiv:1707.06347):  l = max(-A r, -A clamp(r, 1 - ratio_clip_min, 1 + ratio_clip_max)); an upper bound
  wider than the lower one lets rare tokens of good samples grow (DAPO, arXiv:2503.14476).
- dual clip (arXiv:1912.09729):  where A < 0, l = min(l, -A ratio_clip_c), which bounds the loss of one token.
- sequence-level ratios (GSPO, arXiv:2507.18071):  r is the same for all T tokens of a row, exp of the mean of logprob -
  prev_logprob over them.
- importance correction:  l is multiplied by exp(prev_logprob - generation_logprob), because the engine that sampled the
  tokens differs slightly from the model in training; truncated at C the weight is min(., C) (Ionides, "Truncated
  Importance Sampling", 2008; arXiv:1802.01561). The weight is data: no gradient flows through it. With sequence-level
  ratios it is also exp of a mean over the row, so that weight times ratio is GSPO's ratio against the engine.
- KL to the reference:  + reference_policy_kl_penalty * estimate (see _log_ratios), as in GRPO (arXiv:2402.03300).

The mean is over all tokens of the global batch (DAPO), or over rows of each row's mean (GRPO).

A token that top_k or top_p excludes has the log-probability -inf in the policy in training, and so no ratio: it counts
as masked, and so does one whose prev_logprob is -inf. Means of its row are over the row's other tokens. The divisors of
the global batch stay as they are given, because no rank knows beforehand what others will exclude.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer_adapter.losses._interface import LossInputType, LossResult, LossType
from trainer_adapter.losses._log_ratios import KLEstimator, estimate_kl, exp_of_log_ratio
from trainer_adapter.losses.masking import counts, masked_column, masked_mean, require, row_means, token_weights
from trainer_adapter.losses.metrics import as_floats, masked_max, masked_min


@dataclass(frozen=True)
class ClippedPolicyGradientOptions:
    """Options of ClippedPolicyGradientLoss; the defaults are GRPO's clip with DAPO's mean over tokens.

    ratio_clip_min, ratio_clip_max: how far below and above 1 a ratio still gives a gradient.
    ratio_clip_c: the dual clip's bound, above 1 + ratio_clip_max; None: no dual clip.
    token_level_loss: mean over tokens (True) or over rows.
    sequence_level_importance_ratios: GSPO; needs token_level_loss=False.
    reference_policy_kl_penalty: weight of the KL term; 0 disables it, and reference log-probabilities are not needed.
    reference_policy_kl_type: its estimator, "k1", "k2" or "k3".
    use_importance_sampling_correction: weight tokens by exp(prev - generation).
    truncated_importance_sampling_ratio: the largest weight; None: unbounded.
    """

    ratio_clip_min: float = 0.2
    ratio_clip_max: float = 0.2
    ratio_clip_c: float | None = None
    token_level_loss: bool = True
    sequence_level_importance_ratios: bool = False
    reference_policy_kl_penalty: float = 0.0
    reference_policy_kl_type: KLEstimator = "k3"
    use_importance_sampling_correction: bool = False
    truncated_importance_sampling_ratio: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.ratio_clip_min <= 1 or self.ratio_clip_max < 0:
            raise ValueError(
                f"ratio_clip_min must lie in [0, 1] and ratio_clip_max be at least 0, not {self.ratio_clip_min} and "
                f"{self.ratio_clip_max}"
            )
        if self.ratio_clip_c is not None and self.ratio_clip_c <= 1 + self.ratio_clip_max:
            raise ValueError(f"ratio_clip_c must be above 1 + ratio_clip_max, not {self.ratio_clip_c}")
        if self.sequence_level_importance_ratios and self.token_level_loss:
            raise ValueError("sequence_level_importance_ratios needs token_level_loss=False")
        if self.reference_policy_kl_type not in ("k1", "k2", "k3"):
            raise ValueError(f"reference_policy_kl_type must be k1, k2 or k3, not {self.reference_policy_kl_type!r}")
        bound = self.truncated_importance_sampling_ratio
        if bound is not None and not self.use_importance_sampling_correction:
            raise ValueError("truncated_importance_sampling_ratio needs use_importance_sampling_correction=True")
        if bound is not None and bound <= 0:
            raise ValueError(f"truncated_importance_sampling_ratio must be positive, not {bound}")


class ClippedPolicyGradientLoss:
    """The loss that the module's docstring defines."""

    input_type = LossInputType.LOGPROB

    def __init__(self, options: ClippedPolicyGradientOptions | None = None) -> None:
        self._options = options or ClippedPolicyGradientOptions()
        self.loss_type = LossType.TOKEN_LEVEL if self._options.token_level_loss else LossType.SEQUENCE_LEVEL

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Mapping[str, Any],
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> LossResult:
        """next_token_logprobs: [B,S-1].
        data, [B,S] except the last: `token_mask`, `prev_logprobs`, `advantages`; `generation_logprobs` (required for
        the importance correction, otherwise only for metrics); `reference_policy_logprobs` (required for the KL term);
        `sample_mask` [B].

        Metrics; means are per token:
        `loss`; `num_valid_samples`;
        `num_unmasked_tokens`: without those that sampling excludes;
        `kl_penalty`: the KL term before its weight;
        `clip_fraction`: the share of tokens whose gradient a clip stopped;
        `probs_ratio`, `probs_ratio_clamped` and their `_min` and `_max`;
        `approx_entropy`: -log p, weighted to the policy in training;
        `token_mult_prob_error`, with generation logprobs: the mean of exp(|prev - generation|), 1 if engine and trainer
        agree; an error counts as at most 20;
        `sampling_importance_ratio`, with the correction: the mean weight.
        """
        tokens = _Tokens(next_token_logprobs, data)
        ratios = self._ratios(tokens.logprobs - tokens.prev_logprobs, tokens.mask)
        losses, weights = self._policy_losses(ratios, tokens), self._importance_weights(tokens)
        penalty = self._kl(tokens)
        per_token = losses * weights + self._options.reference_policy_kl_penalty * penalty
        loss = self._mean(per_token, tokens.mask, tokens.sample_mask, global_valid_seqs, global_valid_toks)
        shares = {
            "kl_penalty": penalty,
            "clip_fraction": (losses != -tokens.advantages * ratios).to(losses.dtype),
            "probs_ratio": ratios,
            "probs_ratio_clamped": self._clamp(ratios),
            "approx_entropy": _entropy_samples(tokens),
            **self._mismatch(tokens, weights),
        }
        metrics = {name: masked_mean(value.detach(), tokens.mask, global_valid_toks) for name, value in shares.items()}
        return loss, as_floats({"loss": loss, **metrics, **_extremes(shares, tokens.mask), **counts(data, tokens.mask)})

    def _clamp(self, ratios: Tensor) -> Tensor:
        return ratios.clamp(1 - self._options.ratio_clip_min, 1 + self._options.ratio_clip_max)

    def _ratios(self, log_ratios: Tensor, mask: Tensor) -> Tensor:
        if self._options.sequence_level_importance_ratios:
            log_ratios = row_means(log_ratios, (mask != 0).to(mask.dtype))[:, None].expand_as(mask)
        return exp_of_log_ratio(log_ratios)

    def _policy_losses(self, ratios: Tensor, tokens: _Tokens) -> Tensor:
        advantages = tokens.advantages
        losses = torch.maximum(-advantages * ratios, -advantages * self._clamp(ratios))
        if self._options.ratio_clip_c is None:
            return losses
        bounded = torch.minimum(losses, -advantages * self._options.ratio_clip_c)
        return torch.where(advantages < 0, bounded, losses)

    def _importance_weights(self, tokens: _Tokens) -> Tensor:
        """A token whose weight is unknown, because a log-probability is not finite, gets weight 0."""
        if not self._options.use_importance_sampling_correction:
            return torch.ones_like(tokens.mask)
        log_weights = tokens.prev_logprobs - tokens.column("generation_logprobs")
        weights = self._ratios(log_weights.masked_fill(~log_weights.isfinite(), 0.0), tokens.mask)
        weights = weights.masked_fill(~log_weights.isfinite(), 0.0)
        bound = self._options.truncated_importance_sampling_ratio
        return weights if bound is None else weights.clamp(max=bound)

    def _kl(self, tokens: _Tokens) -> Tensor:
        if self._options.reference_policy_kl_penalty == 0:
            return torch.zeros_like(tokens.mask)
        reference = tokens.column("reference_policy_logprobs")
        return estimate_kl(tokens.logprobs, reference, self._options.reference_policy_kl_type)

    def _mean(self, values: Tensor, mask: Tensor, sample_mask: Tensor, seqs: Tensor, toks: Tensor) -> Tensor:
        if self._options.token_level_loss:
            return masked_mean(values, mask, toks)
        return masked_mean(row_means(values, mask), sample_mask, seqs)

    def _mismatch(self, tokens: _Tokens, weights: Tensor) -> dict[str, Tensor]:
        metrics = {}
        if "generation_logprobs" in tokens.data:
            metrics["token_mult_prob_error"] = exp_of_log_ratio((tokens.prev_logprobs - tokens.drawn_logprobs()).abs())
        if self._options.use_importance_sampling_correction:
            metrics["sampling_importance_ratio"] = weights
        return metrics


class _Tokens:
    """A microbatch at its predicted tokens, [B,S-1] in one dtype, 0 where masked out or excluded from sampling."""

    def __init__(self, logprobs: Tensor, data: Mapping[str, Any]) -> None:
        self.data = data
        given = token_weights(data, logprobs.dtype)
        is_excluded = logprobs.detach().isneginf() | masked_column(data, "prev_logprobs", given).isneginf()
        self.mask = given.masked_fill(is_excluded, 0.0)
        self.sample_mask = require(data, "sample_mask")
        self.logprobs = logprobs.masked_fill(self.mask == 0, 0.0)
        self.prev_logprobs = self.column("prev_logprobs")
        self.advantages = self.column("advantages")

    def column(self, key: str) -> Tensor:
        return masked_column(self.data, key, self.mask)

    def drawn_logprobs(self) -> Tensor:
        """Of the policy that generated, for metrics: `prev_logprobs` where they are unknown."""
        if "generation_logprobs" not in self.data:
            return self.prev_logprobs
        drawn = self.column("generation_logprobs")
        return drawn.where(drawn.isfinite(), self.prev_logprobs)


def _entropy_samples(tokens: _Tokens) -> Tensor:
    """Samples of -log p under the policy in training, importance-weighted from the policy that generated: their mean
    estimates the entropy.
    """
    logprobs = tokens.logprobs.detach()
    return -logprobs * exp_of_log_ratio(logprobs - tokens.drawn_logprobs())


def _extremes(shares: Mapping[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
    return {
        f"{name}_{end}": choose(shares[name], mask)
        for name in ("probs_ratio", "probs_ratio_clamped")
        for end, choose in (("min", masked_min), ("max", masked_max))
    }

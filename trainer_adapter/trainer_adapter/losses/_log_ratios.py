"""Probability ratios and KL estimates from differences of log-probabilities, kept finite.

In float32 exp overflows at 88. An infinite ratio is harmful even where a clip chooses the other branch: its gradient
there is 0 * inf, which is NaN, and one such token ruins a training run. So log-ratios are clamped to [-20, 20]. Tokens
of probability 0 have none: a loss leaves them out.

Estimators of KL(policy || reference) from tokens that the policy sampled, with d = logprob - reference_logprob
(J. Schulman, "Approximating KL Divergence", 2020):

    k1 = d                     unbiased, highest variance, may be negative
    k2 = d^2 / 2               biased, lowest variance
    k3 = exp(-d) - 1 + d       unbiased, never negative

As loss terms they behave differently than as estimates: on tokens of the current policy the expected gradient of k2 is
that of the divergence, and the expected gradient of k1 is 0.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

KLEstimator: TypeAlias = Literal["k1", "k2", "k3"]

_LARGEST = 20.0  # a ratio of 4.9e8, larger than training can use


def clamp_log_ratios(log_ratios: Tensor) -> Tensor:
    """Clamp to [-20, 20]; the gradient outside is 0."""
    return log_ratios.clamp(-_LARGEST, _LARGEST)


def exp_of_log_ratio(log_ratios: Tensor) -> Tensor:
    """The ratios, in the same shape, clamped to [exp(-20), exp(20)]."""
    return clamp_log_ratios(log_ratios).exp()


def estimate_kl(logprobs: Tensor, reference_logprobs: Tensor, estimator: KLEstimator) -> Tensor:
    """One estimate for each token, in the shape of `logprobs`; differentiable. k3 clamps d to [-20, 20]."""
    difference = logprobs - reference_logprobs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    difference = clamp_log_ratios(difference)
    return (-difference).exp() - 1 + difference

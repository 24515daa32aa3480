"""Estimates of the KL divergence KL(policy || reference) from the log-probabilities of tokens the policy drew.

With d = logprob - reference_logprob (J. Schulman, "Approximating KL Divergence", 2020):

    k1 = d                     unbiased, varies most, may be negative
    k2 = d^2 / 2               biased, varies least
    k3 = exp(-d) - 1 + d       unbiased, never negative

As terms of a loss they differ otherwise than as estimates: on tokens of the current policy the gradient of k2 is on
average that of the divergence, the gradient of k1 is on average 0.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

from trainer_adapter.losses._log_ratios import cut_off

KLEstimator: TypeAlias = Literal["k1", "k2", "k3"]


def estimate_kl(logprobs: Tensor, reference_logprobs: Tensor, estimator: KLEstimator) -> Tensor:
    """One estimate a token, in the shape of `logprobs`; differentiable. k3 is cut off where |d| > 20."""
    difference = logprobs - reference_logprobs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    difference = cut_off(difference)
    return (-difference).exp() - 1 + difference

"""The fields that each stage reads, by the names under which rollouts are stored."""

from __future__ import annotations

from typing import Final

LOGPROB_FIELDS: Final = ("input_ids", "input_lengths", "token_mask", "sample_mask")
"""Inputs of log-probabilities."""

TRAIN_FIELDS: Final = (
    "input_ids",
    "input_lengths",
    "generation_logprobs",
    "prev_logprobs",
    "reference_policy_logprobs",
    "advantages",
    "token_mask",
    "sample_mask",
)
"""Inputs of a policy-gradient step."""

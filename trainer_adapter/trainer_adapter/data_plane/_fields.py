"""Which fields a stage reads, by the names that rollouts are stored under."""

from __future__ import annotations

from typing import Final

LOGPROB_FIELDS: Final = ("input_ids", "input_lengths", "token_mask", "sample_mask")
"""What log-probabilities are computed from."""

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
"""What a policy-gradient step is computed from."""

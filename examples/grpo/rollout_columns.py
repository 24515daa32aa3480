"""The columns of a generator's rollouts, as `flow.ROLLOUT_FIELDS` names them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dataplane_client import pack_per_token_field
from rollout_sampling import Rollouts


def rollout_columns(
    rollouts: Rollouts, rewards: Sequence[float], rows: slice = slice(None)
) -> dict[str, Tensor | list[str]]:
    """The columns of these rows. rewards: of all rollouts."""
    lengths = rollouts.input_lengths[rows]
    return {
        "input_ids": pack_per_token_field(rollouts.input_ids[rows], lengths),
        "token_mask": pack_per_token_field(rollouts.token_mask[rows], lengths),
        "input_lengths": lengths,
        "sample_mask": torch.ones(len(lengths)),
        "generation_logprobs": pack_per_token_field(rollouts.generation_logprobs[rows], lengths),
        "reward": torch.tensor(rewards[rows]),
        "response": list(rollouts.responses[rows]),
    }

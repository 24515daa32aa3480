"""Advantages of GRPO (arXiv:2402.03300): how much better a rollout is than the others of its prompt.

The mean reward of a prompt's group is the baseline, so no value network is needed. If all rewards of a group are equal,
its advantages are 0: the group teaches nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-4


def group_advantages(rewards: Tensor) -> Tensor:
    """Return (reward - mean) / (std + 1e-4) as [P,G] fp32. rewards: [P,G], one row for each prompt's group.

    Mean and (population) standard deviation are taken over the group. Raises ValueError for groups of fewer than two.
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards: expected [prompts, group >= 2], got {list(rewards.shape)}")
    rewards = rewards.float()
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True, correction=0) + EPSILON)


def spread_over_tokens(advantages: Tensor, token_mask: Tensor) -> Tensor:
    """Give each response token its sample's advantage, and other tokens 0: [N] and [N,S] to [N,S] fp32."""
    return torch.where(token_mask.bool(), advantages.float()[:, None], 0.0)

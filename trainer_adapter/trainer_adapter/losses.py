"""How losses are called and normalised.

A loss returns the *share* of its microbatch: a masked sum divided by a count over the whole global batch. Summed over
microbatches and data-parallel ranks the shares are the global mean, however unequal the parts are.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Protocol

import torch


class LossType(enum.Enum):
    """What a loss averages over."""

    TOKEN_LEVEL = "token_level"  # noqa: S105  # a unit of averaging, not a secret
    SEQUENCE_LEVEL = "sequence_level"


class LossFunction(Protocol):
    """A loss over logits.

    next_token_logits: [B,S,V]; position i predicts token i + 1, and the loss does the shift. data: the microbatch.
    global_valid_seqs, global_valid_toks: 0-d counts over the global batch. Returns the loss (0-d) and its metrics,
    `num_valid_samples` among them.
    """

    def __call__(
        self,
        next_token_logits: torch.Tensor,
        data: Mapping[str, Any],
        global_valid_seqs: torch.Tensor,
        global_valid_toks: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, Any]]: ...

"""Samples as right-padded tensors, the form in which text enters and leaves the data plane.

Shapes: N samples, S = the longest sample of the batch. A sample is a prompt followed by a response; only response
tokens are trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """`input_ids` [N,S] int64; `input_lengths` [N] int64, prompt and response together; `token_mask` [N,S] bool.

    The mask is true on response tokens, the closing end-of-sequence token included, and false on prompt and padding.
    """

    input_ids: Tensor
    input_lengths: Tensor
    token_mask: Tensor


def pad_samples(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], pad_token_id: int) -> TokenBatch:
    """Make one sample of each prompt and its response. Raises ValueError if their numbers differ."""
    rows = [(*prompt, *response) for prompt, response in zip(prompts, responses, strict=True)]
    lengths = torch.tensor([len(row) for row in rows])
    prompt_lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max())
    input_ids = torch.tensor([[*row, *[pad_token_id] * (width - len(row))] for row in rows])
    columns = torch.arange(width)
    return TokenBatch(input_ids, lengths, (columns >= prompt_lengths[:, None]) & (columns < lengths[:, None]))


def count_tokens(token_mask: Tensor) -> int:
    """The number of response tokens, except those in the first column, which no position predicts."""
    return int(token_mask[:, 1:].sum())

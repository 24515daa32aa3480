"""A row as NeMo-RL's token sink stages it for one model call, before the call is answered: 21 columns.

Three of them have an entry for each of 1,000 tokens: int64, float32, float32. The others are small: 13 numbers and 5
texts. The names are ours.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from tensordict import NonTensorStack, TensorDict

Form = Literal["jagged", "dense"]
TOKENS = 1000
_TEXTS = 5
_NUMBERS = 13


def record(form: Form) -> TensorDict:
    """The row. form: the columns of tokens are nested tensors, or rectangles with one row."""
    torch.manual_seed(0)
    columns: dict[str, Any] = {
        "token_ids": _tokens(torch.randint(0, 32_000, (TOKENS,)), form),
        "logprobs": _tokens(-torch.rand(TOKENS), form),
        "token_mask": _tokens(torch.rand(TOKENS), form),
    }
    for number in range(_NUMBERS):
        columns[f"number_{number:02d}"] = torch.rand(1) if number % 2 else torch.randint(0, 1000, (1,))
    for number in range(_TEXTS):
        columns[f"text_{number}"] = NonTensorStack(f"call-{number:08d}")
    return TensorDict(columns, batch_size=[1])


def _tokens(values: torch.Tensor, form: Form) -> torch.Tensor:
    return values[None] if form == "dense" else torch.nested.as_nested_tensor([values], layout=torch.jagged)

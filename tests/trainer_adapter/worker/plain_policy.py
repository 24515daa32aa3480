"""The expected results of a worker, from one process and a plain model: rows one by one, without padding or this
package.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.trainer_adapter.worker.worker_cases import LENGTHS, WIDTH, batch
from torch import Tensor
from transformers import AutoModelForCausalLM

IS_TOKEN = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]


@cache
def model_alone(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def logits_alone(model: Any, temperature: float) -> Tensor:
    """[B,S,V]; 0 behind each row."""
    rows = []
    for ids, length in zip(batch()["input_ids"], LENGTHS, strict=True):
        logits = model(input_ids=ids[None, :length], use_cache=False).logits[0] / temperature
        rows.append(torch.nn.functional.pad(logits, (0, 0, 0, WIDTH - length)))
    return torch.stack(rows)


def logprobs_of(logits: Tensor) -> Tensor:
    """[B,S]: log_softmax and gather; 0 in column 0 and padding."""
    ids = batch()["input_ids"]
    found = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(found * IS_TOKEN[:, 1:], (1, 0))


def grpo_loss(logprobs: Tensor, rows: Any) -> Tensor:
    """Clipped at 0.2 to both sides, a mean over the tokens that count."""
    mask = (rows["token_mask"] * rows["sample_mask"][:, None])[:, 1:]
    ratio = (logprobs - rows["prev_logprobs"])[:, 1:].exp()
    gain = rows["advantages"][:, 1:]
    loss: Tensor = -(torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain) * mask).sum() / mask.sum()
    return loss

"""The expected results of a worker, from one process and a plain model: rows one by one, without padding or this
package.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.trainer_adapter.automodel.tiny_policy import expected_logprobs
from tests.trainer_adapter.worker.worker_cases import TEMPERATURE, batch
from torch import Tensor
from transformers import AutoModelForCausalLM


@cache
def model_alone(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@cache
def logprobs_alone(folder: Path) -> Tensor:
    """[B,S], of the model in a folder."""
    with torch.no_grad():
        return expected_logprobs(model_alone(folder), batch(), TEMPERATURE)


def grpo_loss(model: Any, rows: Any) -> Tensor:
    """Clipped at 0.2 to both sides, a mean over the tokens that count."""
    mask = (rows["token_mask"] * rows["sample_mask"][:, None])[:, 1:]
    ratio = (expected_logprobs(model, rows, TEMPERATURE) - rows["prev_logprobs"])[:, 1:].exp()
    gain = rows["advantages"][:, 1:]
    loss: Tensor = -(torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain) * mask).sum() / mask.sum()
    return loss

"""One forward pass: the arguments a model is called with, and the logits in what it returns.

use_cache is off, always: with a cache, models take a packed row for one long sequence, and tokens see those of the
sequences before theirs without any error. What only FlashAttention or only multimodal models understand is passed when
it is set and not otherwise, so that a model whose forward knows nothing of it can be trained as well.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedInputs


def model_forward(
    model: torch.nn.Module,
    processed_inputs: ProcessedInputs,
    is_reward_model: bool = False,
    allow_flash_attn_args: bool = True,
) -> Any:
    """What model returns for processed_inputs.

    flash_attn_kwargs are passed for packed inputs, unless the model is multimodal, a reward model or one of those that
    refuse them (allow_flash_attn_args false).
    """
    arguments: dict[str, Any] = {
        "input_ids": processed_inputs.input_ids,
        "attention_mask": processed_inputs.attention_mask,
        "position_ids": processed_inputs.position_ids,
        "use_cache": False,
        **processed_inputs.vlm_kwargs,
    }
    takes_bounds = allow_flash_attn_args and not is_reward_model and not processed_inputs.is_multimodal
    if processed_inputs.has_flash_attention and takes_bounds:
        arguments["flash_attn_kwargs"] = processed_inputs.flash_attn_kwargs
    if _needs_token_types(model):
        arguments.setdefault("token_type_ids", torch.zeros_like(processed_inputs.input_ids))
    return model(**arguments)


def _needs_token_types(model: torch.nn.Module) -> bool:
    """Gemma 3 refuses to train without being told which tokens stand for images, also where none does."""
    return getattr(getattr(model, "config", None), "model_type", None) == "gemma3"


def extract_logits(model: torch.nn.Module, outputs: Any) -> Tensor:
    """The logits in what model returned: the tensor itself, its `logits`, or its last hidden state through lm_head."""
    if isinstance(outputs, Tensor):
        return outputs
    if hasattr(outputs, "logits"):
        return cast("Tensor", outputs.logits)
    lm_head = cast("torch.nn.Module", model.lm_head)
    return cast("Tensor", lm_head(outputs.last_hidden_state))


def apply_temperature_scaling(logits: Tensor, sampling_params: TrainingSamplingParams | None) -> Tensor:
    """logits, divided in place by the temperature; ValueError for one that is not positive.

    In place, because the logits are often the largest tensor of a step.
    """
    if sampling_params is None or sampling_params.temperature == 1.0:
        return logits
    if sampling_params.temperature <= 0:
        raise ValueError(f"generation.temperature must be positive, got {sampling_params.temperature}")
    return logits.div_(sampling_params.temperature)

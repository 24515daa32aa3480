"""One forward pass: the arguments of the model, and the logits in its output.

use_cache is always off: with a cache, models treat a packed row as one long sequence, and tokens silently attend to
earlier sequences. Arguments that only FlashAttention or only multimodal models accept are passed only if they are set,
so that other models can be trained too.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from trainer_adapter.automodel.config import TrainingSamplingParams
from trainer_adapter.automodel.data import ProcessedInputs
from trainer_adapter.automodel.models.packed_sequences import packing_arguments


def model_forward(
    model: torch.nn.Module,
    processed_inputs: ProcessedInputs,
    is_reward_model: bool = False,
    allow_flash_attn_args: bool = True,
) -> Any:
    """Call the model with processed_inputs and return its output.

    Arguments that keep packed sequences apart are passed for packed inputs, unless the model is multimodal, a reward
    model, or does not accept them (allow_flash_attn_args=False).
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
        arguments |= packing_arguments(model, processed_inputs)
    if _needs_token_types(model):
        arguments.setdefault("token_type_ids", torch.zeros_like(processed_inputs.input_ids))
    return model(**arguments)


def _needs_token_types(model: torch.nn.Module) -> bool:
    """Gemma 3 requires in training the types of tokens (image or text), also without images."""
    return getattr(getattr(model, "config", None), "model_type", None) == "gemma3"


def extract_logits(model: torch.nn.Module, outputs: Any) -> Tensor:
    """The logits of a model's output: the tensor itself, its `logits`, or its last hidden state through lm_head."""
    if isinstance(outputs, Tensor):
        return outputs
    if hasattr(outputs, "logits"):
        return cast("Tensor", outputs.logits)
    lm_head = cast("torch.nn.Module", model.lm_head)
    return cast("Tensor", lm_head(outputs.last_hidden_state))


def apply_temperature_scaling(logits: Tensor, sampling_params: TrainingSamplingParams | None) -> Tensor:
    """Divide logits in place by the temperature and return them. ValueError if it is not positive.

    It works in place because logits are often the largest tensor of a step.
    """
    temperature = temperature_of(sampling_params)
    return logits if temperature == 1.0 else logits.div_(temperature)


def temperature_of(sampling_params: TrainingSamplingParams | None) -> float:
    """What logits are divided by; 1 without sampling_params. ValueError if it is not positive."""
    temperature = 1.0 if sampling_params is None else sampling_params.temperature
    if temperature <= 0:
        raise ValueError(f"generation.temperature must be positive, got {temperature}")
    return temperature

"""Adapters on disk in the layout of the peft library, which serving engines load beside the base model.

    adapter_model.safetensors   A and B, whole, as base_model.model.<layer>.lora_A.weight and so on
    adapter_config.json         rank, alpha and the names of the layers

The files are small, so rank 0 reads and writes them for all ranks. Loading replaces the values of adapters, not their
shape: the model's configuration must have the same layers, rank and scale.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from trainer_adapter.automodel.adapters.layers import adapted_layers, adapter_weights
from trainer_adapter.automodel.rank import fail_together

_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."


def write_adapters(folder: Path, model: nn.Module) -> None:
    """Write the adapters to an existing folder; a collective call of all ranks.

    Raises ValueError for a model that trains other weights too, which would be lost.
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if others := sorted(trained - adapter_weights(model)):
        raise ValueError(f"the model trains more than adapters ({others[0]} first), and only adapters would be saved")
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    state = get_model_state_dict(model, options=options)
    with fail_together("writing the adapters"):
        if torch.distributed.get_rank() == 0:
            weights: dict[str, Any] = {_PREFIX + name: state[name] for name in adapter_weights(model)}
            save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})
            (folder / _CONFIG).write_text(json.dumps(_describe(model), indent=2))


def read_adapters(folder: Path, model: nn.Module) -> None:
    """Load the model's adapters; its other weights stay unchanged. A collective call of all ranks.

    Rank 0 raises ValueError naming the mismatch with the model, OSError for missing or unreadable files, safetensors'
    own error for corrupt ones; other ranks raise RuntimeError.
    """
    with fail_together(f"reading the adapters in {folder}"):
        weights: dict[str, Any] = _read_weights(folder, model) if torch.distributed.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(model, weights, options=options)


def _describe(model: nn.Module) -> dict[str, Any]:
    layers = adapted_layers(model)
    rank, alpha = _rank_and_alpha(layers)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": getattr(getattr(model, "config", None), "name_or_path", None),
        "r": rank,
        "lora_alpha": alpha,
        "bias": "none",
        "target_modules": sorted(layers),
    }


def _read_weights(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    _check_scale(folder / _CONFIG, *_rank_and_alpha(adapted_layers(model)))
    weights = {name.removeprefix(_PREFIX): value for name, value in load_file(folder / _WEIGHTS).items()}
    if odd := sorted(weights.keys() ^ adapter_weights(model)):
        raise ValueError(f"{folder}: the adapted layers differ from the model's ({odd[0]} first)")
    for name, value in weights.items():
        expected = tuple(model.get_parameter(name).shape)
        if tuple(value.shape) != expected:
            raise ValueError(f"{folder}: {name} has shape {tuple(value.shape)}, the model's has {expected}")
    return {name: value.float() for name, value in weights.items()}


def _rank_and_alpha(layers: dict[str, Any]) -> tuple[int, float]:
    """The rank and alpha, which are the same in all layers."""
    layer = next(iter(layers.values()))
    rank: int = layer.lora_A.weight.shape[0]
    alpha = round(layer.scale * rank, 9)
    return rank, int(alpha) if alpha.is_integer() else alpha  # peft expects an int for whole numbers


def _check_scale(path: Path, rank: int, alpha: float) -> None:
    described = json.loads(path.read_text())
    if not isinstance(described, dict) or described.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type must be LORA")
    if rescaled := [key for key in ("use_rslora", "alpha_pattern") if described.get(key)]:  # not by alpha / r
        raise ValueError(f"{path}: {rescaled[0]} is not supported")
    if described.get("lora_alpha") != alpha or described.get("r") != rank:
        raise ValueError(
            f"{path}: r={described.get('r')} and lora_alpha={described.get('lora_alpha')} differ from "
            f"dtensor_cfg.lora_cfg, which has dim={rank} and alpha={alpha}"
        )

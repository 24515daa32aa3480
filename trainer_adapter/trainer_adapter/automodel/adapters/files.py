"""Adapters on disk, in the layout of the peft library, which serving engines load beside the base model.

    adapter_model.safetensors   A and B, whole, as base_model.model.<layer>.lora_A.weight and so on
    adapter_config.json         rank, alpha and the names of the layers

The files are small beside a model, so rank 0 writes and reads them for all. The numbers of another adapter can be
loaded, but not its shape: the model's configuration has to ask for the same layers, rank and scale.
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
from trainer_adapter.automodel.rank import failing_together

_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_RESCALED = ("use_rslora", "alpha_pattern")
"""Settings of peft under which alpha / r is not what its layers are scaled by."""


def write_adapters(folder: Path, model: nn.Module) -> None:
    """The folder exists; every rank calls this.

    Raises ValueError for a model that trains more than adapters, which would be lost.
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if others := sorted(trained - adapter_weights(model)):
        raise ValueError(f"only adapters can be saved, but the model trains more, the first one: {others[0]}")
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    state = get_model_state_dict(model, options=options)
    with failing_together("writing the adapters"):
        if torch.distributed.get_rank() == 0:
            weights: dict[str, Any] = {_PREFIX + name: state[name] for name in adapter_weights(model)}
            save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})
            (folder / _CONFIG).write_text(json.dumps(_description(model), indent=2))


def read_adapters(folder: Path, model: nn.Module) -> None:
    """Into the model's adapters; its other weights stay. Every rank calls this.

    Raises on rank 0 ValueError naming what does not fit the model, OSError for files that are missing or cannot be
    read, safetensors' own error for broken ones; RuntimeError elsewhere.
    """
    with failing_together(f"reading the adapters in {folder}"):
        weights: dict[str, Any] = _checked_weights(folder, model) if torch.distributed.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(model, weights, options=options)


def _description(model: nn.Module) -> dict[str, Any]:
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


def _checked_weights(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    _check_scale(folder / _CONFIG, *_rank_and_alpha(adapted_layers(model)))
    weights = {name.removeprefix(_PREFIX): value for name, value in load_file(folder / _WEIGHTS).items()}
    if odd := sorted(weights.keys() ^ adapter_weights(model)):
        raise ValueError(f"{folder}: the adapters are for other layers than the model's, the first one: {odd[0]}")
    for name, value in weights.items():
        expected = tuple(model.get_parameter(name).shape)
        if tuple(value.shape) != expected:
            raise ValueError(f"{folder}: {name} has shape {tuple(value.shape)}, the model's has {expected}")
    return {name: value.float() for name, value in weights.items()}


def _rank_and_alpha(layers: dict[str, Any]) -> tuple[int, float]:
    """The same in all layers."""
    layer = next(iter(layers.values()))
    rank: int = layer.lora_A.weight.shape[0]
    alpha = round(layer.scale * rank, 9)
    return rank, int(alpha) if alpha.is_integer() else alpha  # others expect a whole number where it is one


def _check_scale(path: Path, rank: int, alpha: float) -> None:
    described = json.loads(path.read_text())
    if not isinstance(described, dict) or described.get("peft_type") != "LORA":
        raise ValueError(f"{path} does not describe adapters of low rank")
    if rescaled := [key for key in _RESCALED if described.get(key)]:
        raise ValueError(f"{path}: adapters with {rescaled[0]} are not supported")
    if described.get("lora_alpha") != alpha or described.get("r") != rank:
        raise ValueError(
            f"{path}: r={described.get('r')} and lora_alpha={described.get('lora_alpha')} do not fit "
            f"dtensor_cfg.lora_cfg, where dim={rank} and alpha={alpha}"
        )

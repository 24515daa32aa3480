"""Low-rank adapters beside frozen linear layers (LoRA, arXiv:2106.09685); only the adapters are trained and saved.

A linear layer is given an adapter in place. It keeps its name, its weight's name and its hooks. This happens after
tensor parallelism and before FSDP2. The layer's hooks turn inputs into DTensors and sum outputs over ranks; the adapter
computes between these hooks, so its output is summed once, with the layer's. For a weight sharded by rows, B is sharded
the same way and A is whole; for a weight sharded by columns, A is sharded and B is whole.

Pretrained models have no values for adapters. Rank 0 draws them and sends them with the pretrained weights, so they are
the same for every arrangement of ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from trainer_adapter.automodel.adapters.config import PeftConfig


class LoraLinear(nn.Linear):
    """y = x @ (W + B @ A * scale).T + bias, where W is [out,in], A is lora_A.weight [dim,in], B is lora_B.weight
    [out,dim] and scale is alpha / dim. add_adapters makes it from a linear layer.
    """

    adapter: PeftConfig
    scale: float
    lora_A: nn.Linear  # noqa: N815  # the name in checkpoints
    lora_B: nn.Linear  # noqa: N815

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # named by torch
        update = self.lora_B(self.lora_A(self._drop(input, "pre"))) * self.scale
        return super().forward(input) + self._drop(update, "post")

    def _drop(self, values: Tensor, position: str) -> Tensor:
        if self.adapter.dropout == 0 or self.adapter.dropout_position != position:
            return values
        return nn.functional.dropout(values, self.adapter.dropout, self.training)


def add_adapters(model: nn.Module, config: PeftConfig) -> None:
    """Freeze the model and add adapters, without values, to the layers that config names.

    Raises ValueError if config names no linear layer, or one that shares its weight with another, whose adapter could
    not be merged; TypeError for a linear layer of a special kind. The model is unchanged then.
    """
    names = _select_layers(model, config)
    _check_layers(model, names)
    model.requires_grad_(False)
    for name in names:
        _adapt(model.get_submodule(name), config)


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Layers with lora_A, lora_B and scale by name, those of NeMo Automodel included; empty without adapters."""
    return {
        name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A") and hasattr(layer, "lora_B")
    }


def adapter_weights(model: nn.Module) -> set[str]:
    """Names of the adapters' weights in the model's state dict."""
    return {f"{layer}.{part}.weight" for layer in adapted_layers(model) for part in ("lora_A", "lora_B")}


def initial_adapters(model: nn.Module) -> dict[str, Tensor]:
    """The initial whole A and B of every LoraLinear, float32 on the CPU.

    They come from a separate generator, seeded with torch's seed: torch's own random stream is the same with and
    without adapters, and rank 0 draws no more from it than other ranks.
    """
    generator = torch.Generator().manual_seed(torch.initial_seed())
    weights = {}
    for name, layer in adapted_layers(model).items():
        weights[f"{name}.lora_A.weight"] = _draw_a(layer, generator)
        weights[f"{name}.lora_B.weight"] = torch.zeros(layer.lora_B.weight.shape, device="cpu")
    return weights


def _draw_a(layer: LoraLinear, generator: torch.Generator) -> Tensor:
    weight = torch.empty(layer.lora_A.weight.shape, device="cpu")
    if layer.adapter.lora_A_init == "xavier":
        return nn.init.xavier_normal_(weight, generator=generator)
    return nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)


def _select_layers(model: nn.Module, config: PeftConfig) -> list[str]:
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    for pattern in config.target_modules:
        if not any(_matches(name, (pattern,)) for name in linear):
            raise ValueError(f"dtensor_cfg.lora_cfg.target_modules: {pattern!r} matches no linear layer of the model")
    head = getattr(model, "get_output_embeddings", lambda: None)()
    everywhere = {name for name in linear if config.match_all_linear and model.get_submodule(name) is not head}
    wanted = [name for name in linear if name in everywhere or _matches(name, config.target_modules)]
    adapted = [name for name in wanted if not _matches(name, config.exclude_modules)]
    if not adapted:
        raise ValueError("dtensor_cfg.lora_cfg: exclude_modules leaves no linear layer to adapt")
    return adapted


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.rpartition(".")[2] == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _check_layers(model: nn.Module, names: list[str]) -> None:
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    for name in names:
        layer = model.get_submodule(name)
        if type(layer) is not nn.Linear:
            raise TypeError(
                f"dtensor_cfg.lora_cfg: {name} is a {type(layer).__name__}; only torch.nn.Linear can have an adapter"
            )
        if uses[id(layer.weight)] > 1:
            raise ValueError(f"dtensor_cfg.lora_cfg: {name} shares its weight with another layer; exclude it")


def _adapt(layer: Any, config: PeftConfig) -> None:
    """Change the layer in place, because it carries the hooks of tensor parallelism."""
    layer.__class__ = LoraLinear
    layer.adapter = config
    layer.scale = config.alpha / config.dim
    layer.lora_A = nn.Linear(layer.in_features, config.dim, bias=False, device="meta")
    layer.lora_B = nn.Linear(config.dim, layer.out_features, bias=False, device="meta")
    if isinstance(layer.weight, DTensor):
        for part, divided in ((layer.lora_A, Shard(1)), (layer.lora_B, Shard(0))):  # by columns, by rows
            placement = divided if layer.weight.placements == (divided,) else Replicate()
            whole = part.weight.detach()
            part.weight = nn.Parameter(distribute_tensor(whole, layer.weight.device_mesh, [placement]))

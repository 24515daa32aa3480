"""A trainer's weights as generation engines expect them: whole, with Hugging Face names, in one dtype, adapters merged.

The entries of the model's state dict are sent one by one, in its order. Tied embeddings are two entries and are sent
under both names: an engine that ties them too writes equal values twice, and one that does not still has equal weights.
Floating-point entries are cast; all others keep their dtype.

Transformers fuses the experts of a layer into one entry when it reads a model's files. Engines know the names in the
files, so experts are sent one by one again.

Only one parameter is whole at a time. The iterator drops it when the next one is requested; callers should too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

RefitInfo: TypeAlias = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Full shape and dtype of every weight that is sent, by its name, in the order of sending."""

Split: TypeAlias = Callable[[str, Tensor], Iterable[tuple[str, Tensor]]]
"""From an entry of a state dict to the weights that engines get of it, by their names."""

EXTRA_STATE = "_extra_state"


def generation_parameters(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of every weight, contiguous, on the device where the model computes.

    Gathering sharded weights is a collective: all ranks of the model iterate together and to the end, and each gets all
    weights. A layer X with an adapter yields X.weight + lora_B.weight @ lora_A.weight * X.scale, added in float32 or
    wider.
    """
    return _entries(model, dtype, _gather)


def refit_info(model: nn.Module, dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Names, full shapes and dtypes of generation_parameters, in its order. Not a collective; allocates no weights."""
    return {name: (value.shape, value.dtype) for name, value in _entries(model, dtype, _on_meta)}


def _entries(model: nn.Module, dtype: torch.dtype, gather: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Tensor]]:
    state, split = model.state_dict(), splitter(model)
    for name in filter(_is_sent, state):
        # Its locals are freed before the next entry.
        yield from _cast(split(name, _merge_adapter(model, state, name, gather)), dtype)


def _is_sent(name: str) -> bool:
    return not name.endswith(EXTRA_STATE) and not {"lora_A", "lora_B"} & set(name.split("."))


def _cast(parts: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    for name, part in parts:
        yield name, part.to(dtype if part.is_floating_point() else part.dtype).contiguous()


def splitter(model: nn.Module) -> Split:
    """By the model's `state_dict_adapter` (NeMo AutoModel), or by what transformers does when it writes experts."""
    adapter = getattr(model, "state_dict_adapter", None)
    if adapter is not None:
        options = {"exclude_key_regex": f".*{EXTRA_STATE}.*", "quantization": False}
        return lambda name, value: adapter.convert_single_tensor_to_hf(name, value, **options)
    steps = _fusing_steps(model) if "transformers" in sys.modules else []  # whoever has a model of it has imported it
    if not steps:
        return lambda name, value: [(name, value)]
    from transformers.core_model_loading import revert_weight_conversion

    files: Any = SimpleNamespace(config=model.config, _weight_conversions=steps)
    return lambda name, value: revert_weight_conversion(files, {name: value}).items()


def _fusing_steps(model: Any) -> list[Any]:
    """What transformers does with the files of a model with experts. Nothing if one weight in a file becomes several
    entries, because an entry alone does not give it back.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import MergeModulelist, WeightConverter, WeightRenaming

    found = get_model_conversion_mapping(model, add_legacy=False)
    fusing = [step for step in found if isinstance(step, WeightConverter)]
    has_experts = any(isinstance(operation, MergeModulelist) for step in fusing for operation in step.operations)
    if not has_experts or any(len(step.target_patterns) > 1 for step in fusing):
        return []
    return [step for step in found if type(step) in (WeightConverter, WeightRenaming)]  # no prefixes of other models


def _merge_adapter(
    model: nn.Module, state: Mapping[str, Tensor], name: str, gather: Callable[[Tensor], Tensor]
) -> Tensor:
    weight = gather(state[name])
    layer, _, last = name.rpartition(".")
    a, b = state.get(f"{layer}.lora_A.weight"), state.get(f"{layer}.lora_B.weight")
    if last != "weight" or a is None or b is None:
        return weight
    exact = torch.promote_types(weight.dtype, torch.float32)
    scale = float(model.get_submodule(layer).scale)  # type: ignore[arg-type]  # a number, not a module
    return torch.addmm(weight.to(exact), gather(b).to(exact), gather(a).to(exact), alpha=scale)


def _gather(value: Tensor) -> Tensor:
    if not isinstance(value, DTensor):
        return value
    # Weights on the CPU are gathered on the device that their ranks communicate over.
    return cast("DTensor", value.to(value.device_mesh.device_type)).full_tensor()


def _on_meta(value: Tensor) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype, device="meta")

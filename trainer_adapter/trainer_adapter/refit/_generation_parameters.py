"""A trainer's weights as generation engines expect them: whole, with Hugging Face names, in one dtype, adapters merged.

The entries of the model's state dict are sent one by one, in its order. Tied embeddings are two entries and are sent
under both names: an engine that ties them too writes equal values twice, and one that does not still has equal weights.
Floating-point entries are cast; all others keep their dtype.

Only one parameter is whole at a time. The iterator drops it when the next one is requested; callers should too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

RefitInfo: TypeAlias = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Full shape and dtype of every weight that is sent, by its name, in the order of sending."""

EXTRA_STATE = "_extra_state"


def generation_parameters(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of every weight, contiguous, on the device where the model computes.

    Gathering sharded weights is a collective: all ranks of the model iterate together and to the end, and each gets all
    weights. A layer X with an adapter yields X.weight + lora_B.weight @ lora_A.weight * X.scale, added in float32 or
    wider. A model with a `state_dict_adapter` (NeMo AutoModel) yields the adapter's translation of each entry.
    """
    return _entries(model, dtype, _gather)


def refit_info(model: nn.Module, dtype: torch.dtype) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Names, full shapes and dtypes of generation_parameters, in its order. Not a collective; allocates no weights."""
    return {name: (value.shape, value.dtype) for name, value in _entries(model, dtype, _on_meta)}


def _entries(model: nn.Module, dtype: torch.dtype, gather: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Tensor]]:
    state = model.state_dict()
    for name in state:
        if _is_sent(name):
            yield from _convert_entry(model, state, name, dtype, gather)  # its locals are freed before the next entry


def _is_sent(name: str) -> bool:
    return not name.endswith(EXTRA_STATE) and not {"lora_A", "lora_B"} & set(name.split("."))


def _convert_entry(
    model: nn.Module, state: Mapping[str, Tensor], name: str, dtype: torch.dtype, gather: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the entry in the engine's names; several tensors if its layout differs."""
    value = _merge_adapter(model, state, name, gather)
    adapter = getattr(model, "state_dict_adapter", None)
    entries: list[tuple[str, Tensor]] = [(name, value)]
    if adapter is not None:
        exclude = f".*{EXTRA_STATE}.*"
        entries = adapter.convert_single_tensor_to_hf(name, value, exclude_key_regex=exclude, quantization=False)
    del value
    for sent_name, part in entries:
        yield sent_name, part.to(dtype if part.is_floating_point() else part.dtype).contiguous()


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

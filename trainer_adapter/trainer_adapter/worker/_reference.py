"""The reference weights in the place of the current ones, for as long as a block runs.

Models are swapped in place, part by part of this rank, since a second model would not fit beside the first. Whatever
happens in the block, the current weights are back afterwards, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.distributed.tensor import DTensor

from trainer_adapter.automodel.setup import setup_reference_model_state


@contextmanager
def weights_in_place(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """weights: this rank's part of every entry of the model's state dict, as setup_reference_model_state gives it.

    ValueError, before anything is changed, for weights with other names or shapes.
    """
    _check_alike(model, weights)
    current = setup_reference_model_state(model)
    try:
        _copy_in(model, weights)
        yield
    finally:
        _copy_in(model, current)


def _check_alike(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    own = {name: _local(value).shape for name, value in model.state_dict().items()}
    given = {name: value.shape for name, value in weights.items()}
    odd = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if odd:
        raise ValueError(f"reference weights do not fit the model: {', '.join(odd[:5])} differ in shape or are missing")


@torch.no_grad()
def _copy_in(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """state_dict() also makes FSDP let go of parameters that it still holds whole from the last forward pass, which
    would otherwise be used in the next one.
    """
    for name, value in model.state_dict().items():
        _local(value).copy_(weights[name])


def _local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value

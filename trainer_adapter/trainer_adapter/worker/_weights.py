"""This rank's weights and optimizer state: moving them between devices, and running with the reference weights.

Reference weights are swapped in place, this rank's part only, because a second model would not fit beside the first.

Copies between a GPU and the host are queued, through pinned memory, and the host waits once for all of them. Torch pins
the host's side of a copy that does not block, and keeps that memory for the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.distributed.tensor import DTensor

from trainer_adapter.automodel.parallel.fsdp import release_whole_weights
from trainer_adapter.automodel.rank import computes_on_gpu


def move_model(model: torch.nn.Module, device: torch.device, pin: bool = True) -> None:
    """Move all parameters and buffers, in place. pin: the host's memory is pinned.

    All copies have arrived before the model gets them: FSDP then pads shards of unequal size, on the host.
    """
    release_whole_weights(model)
    tensors = (*model.parameters(), *model.buffers())
    moved = {id(tensor): tensor.detach().to(device, non_blocking=pin) for tensor in tensors}

    def take(tensor: torch.Tensor) -> torch.Tensor:
        """A tied tensor comes twice, and is in its place the second time."""
        return moved.pop(id(tensor)) if id(tensor) in moved else tensor.to(device)

    _wait_for_copies()
    model._apply(take)  # noqa: SLF001  # what Module.to calls, and FSDP completes
    _release_cache()


def move_optimizer(optimizer: torch.optim.Optimizer | None, device: torch.device, pin: bool = True) -> None:
    """Move the optimizer's tensors. Step counts stay on the CPU, where optimizers expect them. pin: as move_model."""
    if optimizer is None:
        return
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, DTensor) or (isinstance(value, torch.Tensor) and value.ndim > 0):
                state[name] = value.to(device, non_blocking=pin)
    _wait_for_copies()
    _release_cache()


def _release_cache() -> None:
    if computes_on_gpu():
        torch.cuda.empty_cache()


@contextmanager
def swap_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Run the block with other weights; afterwards the current ones are back, bit for bit, also after an exception.

    weights: this rank's part of every entry of the model's state dict, as setup_reference_model_state returns it.
    Inside the block its tensors have the current weights, so that no memory is needed for a third copy.
    Raises ValueError, before anything changes, for weights with other names or shapes.
    """
    _check_fit(model, weights)
    swapped: list[str] = []
    try:
        for name, value in model.state_dict().items():
            _swap(value, weights[name])
            swapped.append(name)
        _wait_for_copies()
        yield
    finally:
        state = model.state_dict()  # anew, since the block's forward passes: see release_whole_weights
        for name in reversed(swapped):  # the exact way back, because tied weights are swapped under each name
            _swap(state[name], weights[name])
        _wait_for_copies()


def _check_fit(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    own = {name: _local(value).shape for name, value in model.state_dict().items()}
    given = {name: value.shape for name, value in weights.items()}
    odd = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
    if odd:
        raise ValueError(f"reference weights do not fit the model: {', '.join(odd[:5])} differ in shape or are missing")


@torch.no_grad()
def _swap(entry: torch.Tensor, other: torch.Tensor) -> None:
    own = _local(entry)
    try:
        current = own.clone()
    except torch.OutOfMemoryError:  # the block may have left no memory on the device
        current = own.to("cpu", copy=True)
    own.copy_(other, non_blocking=current.device == own.device)  # the next one on the host would not wait for it
    other.copy_(current, non_blocking=True)


def _wait_for_copies() -> None:
    if computes_on_gpu():
        torch.cuda.current_stream().synchronize()


def _local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value

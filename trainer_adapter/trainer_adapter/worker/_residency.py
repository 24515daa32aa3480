"""Where weights and optimizer state lie: on the device to be used, or on the CPU to leave room for others."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

_CPU = torch.device("cpu")


def move_model(model: torch.nn.Module, device: torch.device) -> None:
    """state_dict() first, so that FSDP lets go of parameters that it holds whole."""
    model.state_dict()
    model.to(device)
    _release_cache()


def move_optimizer(optimizer: torch.optim.Optimizer | None, device: torch.device) -> None:
    """Numbers such as step counts stay on the CPU, where optimizers expect them."""
    if optimizer is None:
        return
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, DTensor) or (isinstance(value, torch.Tensor) and value.ndim > 0):
                state[name] = value.to(device)
    _release_cache()


def offload_optimizer(optimizer: torch.optim.Optimizer | None) -> None:
    move_optimizer(optimizer, _CPU)


def offload_model(model: torch.nn.Module) -> None:
    move_model(model, _CPU)


def _release_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

"""Where a rank computes: on its current CUDA device when there is one, otherwise wherever its tensors lie."""

from __future__ import annotations

import torch


def compute_device() -> torch.device | None:
    """None: no device of its own, new tensors go to torch's default."""
    return torch.device("cuda") if torch.cuda.is_available() else None


def to_compute_device(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, not a copy, when it need not move."""
    device = compute_device()
    return tensor if device is None else tensor.to(device)

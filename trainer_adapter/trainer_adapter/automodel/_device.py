"""Where a rank computes: on the device that set-up settled; before that on a CUDA device when there is one, otherwise
wherever tensors lie.
"""

from __future__ import annotations

import torch

_settled: torch.device | None = None


def settle_device(device: torch.device) -> None:
    """From now on this process computes on `device`, also on "cpu" where there are GPUs."""
    global _settled  # one process is one rank, and a rank computes in one place
    _settled = device


def compute_device() -> torch.device | None:
    """None: no device of its own, new tensors go to torch's default."""
    if _settled is not None:
        return _settled
    return torch.device("cuda") if torch.cuda.is_available() else None


def to_compute_device(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, not a copy, when it need not move."""
    device = compute_device()
    return tensor if device is None else tensor.to(device)

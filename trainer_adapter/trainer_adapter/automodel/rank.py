"""This process as one rank of a job: the device it computes on, its notices, and steps that fail on all ranks
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_chosen: torch.device | None = None


def choose_device(device: torch.device) -> None:
    """Set the device of this process for all later calls; "cpu" is valid on a host with GPUs."""
    global _chosen  # a process is one rank, and a rank has one device
    _chosen = device


def compute_device() -> torch.device | None:
    """Return the chosen device; before a choice the current CUDA device if there is one.

    None: this process has no device of its own, and new tensors go to torch's default device.
    """
    if _chosen is not None:
        return _chosen
    return torch.device("cuda") if torch.cuda.is_available() else None


def computes_on_gpu() -> bool:
    """Whether the compute device is a GPU. A rank on the CPU leaves its host's GPUs alone."""
    device = compute_device()
    return device is not None and device.type == "cuda"


def to_compute_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the compute device: the same object if it is already there. See queue_copy."""
    device = compute_device()
    return tensor if device is None else queue_copy(tensor, device)


def queue_copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on the device: the same object if it is already there.

    A copy to a GPU is queued on the current stream, from pinned memory. The host does not wait for the work before it,
    as it does for `tensor.to(device)`.
    """
    if device.type != "cuda" or tensor.device.type != "cpu" or tensor.is_nested:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def rank_device(device: str) -> torch.device:
    """Return the torch device of this rank for a device type, "cuda" or "cpu"."""
    return torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")


@contextmanager
def fail_together(what: str) -> Iterator[None]:
    """Run a block that may fail on one rank alone, such as reading a file; a collective call of all ranks.

    All ranks leave the block together. If it failed on some, the others raise RuntimeError naming `what`. Without this
    the other ranks would wait in their next collective until its timeout.
    """
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    failed = torch.ones(1, device=device)
    try:
        yield
        failed.zero_()
    finally:
        torch.distributed.all_reduce(failed)
    if failed.item():
        raise RuntimeError(f"another rank failed: {what}; see that rank's error")


def report(text: str) -> None:
    """Print a notice of set-up to standard output, where launchers collect the output of ranks."""
    print(text, flush=True)  # noqa: T201  # the notices' documented place

"""DOC"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


def rank_device(device: str) -> torch.device:
    """Where this rank computes."""
    return torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")


@contextmanager
def failing_together(what: str) -> Iterator[None]:
    """All ranks enter, all leave together. RuntimeError naming `what` on ranks that did well when another did not."""
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    failed = torch.ones(1, device=device)
    try:
        yield
        failed.zero_()
    finally:
        torch.distributed.all_reduce(failed)
    if failed.item():
        raise RuntimeError(f"another rank failed: {what}; its own error tells why")


def report(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # the notices' documented place

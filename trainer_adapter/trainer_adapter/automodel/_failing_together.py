"""A step that may fail on one rank alone, reading a file say, is a collective: else the other ranks wait for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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

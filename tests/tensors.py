"""Tensors of every element type, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.nested import nested_tensor_from_jagged

PLAIN = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Element types for bits, by bytes."""


def some(kind: str | torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Bits of all kinds, so that float types hold NaN, infinities and denormals too. kind: a dtype, or its name."""
    dtype: torch.dtype = getattr(torch, kind) if isinstance(kind, str) else kind
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    source = torch.Generator().manual_seed(size + seed)
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8, generator=source)
    return bits.view(dtype).reshape(shape)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().view(PLAIN[tensor.dtype.itemsize]).contiguous().numpy().tobytes()


def jagged(values: torch.Tensor, lengths: Sequence[int] | npt.NDArray[np.int64]) -> torch.Tensor:
    """The nested tensor of rows that adjoin in values."""
    offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int64, device=values.device)
    shortest, longest = min(lengths, default=0), max(lengths, default=0)
    return nested_tensor_from_jagged(values, offsets=offsets, min_seqlen=int(shortest), max_seqlen=int(longest))


def objects(*values: object) -> npt.NDArray[np.object_]:
    """An array of objects, lists and arrays among them."""
    return np.fromiter(values, object, len(values))

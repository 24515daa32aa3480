"""Columns of a batch as flat tensors, checked without waiting for their device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor


def flat_column(batch: Mapping[str, Any], name: str, dims: int, *, floating: bool = False) -> tuple[Tensor, Tensor]:
    """All values of a field of real numbers, and where its rows begin and end."""
    found: object = batch.get(name)
    if not isinstance(found, Tensor):
        raise TypeError(f"field {name!r}: must be a torch.Tensor, got {type(found).__name__}")
    if found.is_complex() or (floating and not found.is_floating_point()):
        raise TypeError(f"field {name!r}: must have a {'floating' if floating else 'real'} dtype, got {found.dtype}")
    if found.dim() != dims:
        raise ValueError(f"field {name!r}: must have {dims} dims, got {found.dim()}")
    if found.is_nested:
        jagged = cast("Any", found.detach())
        if found.layout is not torch.jagged or jagged.lengths() is not None:
            raise ValueError(f"field {name!r}: nested tensors must use torch.jagged with no gaps between rows")
        return jagged.values(), jagged.offsets()
    width = found.shape[1] if dims > 1 else 1
    return found.detach().reshape(-1), torch.arange(len(found) + 1, device=found.device) * width


def require_same_sizes(columns: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """ValueError unless these fields have the device, and numbers of rows and of values, that the first one has."""
    texts = {name: f"{len(flat)} values in {len(at) - 1} rows on {flat.device}" for name, (flat, at) in columns.items()}
    first, *_ = texts
    for name, text in texts.items():
        if text != texts[first]:
            raise ValueError(f"field {name!r}: has {text}, but {first!r} has {texts[first]}")

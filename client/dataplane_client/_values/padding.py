"""Pads ragged or too narrow fields on the right to rectangles.

The pad value is converted once to the field's dtype. For integer and bool fields it must be a value of that dtype and
is converted exactly, also beyond 2**53; for floating-point fields torch rounds it to the nearest value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dataplane_client._common.arguments import checked_number
from dataplane_client._values.jagged import JaggedRows
from dataplane_client._values.row_kernels import RowCopy
from dataplane_client._values.rows import bits, pad_rows

_TWO_IN_A_BYTE = getattr(torch, "float4_e2m1fn_x2", None)


def pad_jagged(
    field: str, rows: JaggedRows, pad_value: float, min_width: int, later: list[RowCopy] | None = None
) -> torch.Tensor:
    """``(N, width, *trailing)`` with width the longest row, at least min_width; later as in pad_rows."""
    width = max(int(rows.lengths.max(initial=0)), min_width)
    element = pad_element(field, rows.values.dtype, pad_value)
    return pad_rows(rows.values, rows.starts, rows.lengths, width, element, later)


def pad_every_dim(field: str, rows: Sequence[torch.Tensor], pad_value: float, min_width: int) -> torch.Tensor:
    """Rows of one rank as one tensor, each size the largest of any row, the first at least min_width."""
    sizes = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
    shape = (len(rows), max(sizes[0], min_width), *sizes[1:])
    element = pad_element(field, rows[0].dtype, pad_value).to(rows[0].device)
    keeps_gradients = any(row.requires_grad for row in rows)
    padded = (element if keeps_gradients else bits(element)).reshape([1] * len(shape)).expand(shape).clone()
    for index, row in enumerate(rows):
        padded[index][tuple([slice(size) for size in row.shape])] = row if keeps_gradients else bits(row)
    return padded if keeps_gradients else padded.view(element.dtype)


def widen(
    field: str, tensor: torch.Tensor, pad_value: float, width: int, later: list[RowCopy] | None = None
) -> torch.Tensor:
    """The tensor with dim 1 extended to width, which must not be smaller; later as in pad_rows."""
    n_rows, old_width = tensor.shape[:2]
    values = tensor.reshape(n_rows * old_width, *tensor.shape[2:])
    starts = np.arange(n_rows, dtype=np.int64) * old_width
    lengths = np.full(n_rows, old_width, np.int64)
    return pad_rows(values, starts, lengths, width, pad_element(field, tensor.dtype, pad_value), later)


def pad_element(field: str, dtype: torch.dtype, pad_value: float) -> torch.Tensor:
    """The pad value as a tensor of one element. Raises ValueError, naming the field, if dtype cannot hold it, and
    TypeError if it is not a number.
    """
    given: Any = pad_value  # also a tensor, or a NumPy scalar
    pad_value = checked_number("pad value", given.item() if hasattr(given, "item") else given, f"field {field!r}")
    if (dtype.is_floating_point or dtype.is_complex) and dtype is not _TWO_IN_A_BYTE:
        if torch.finfo(dtype).max < abs(pad_value) < math.inf:
            raise ValueError(f"field {field!r}: pad value {pad_value!r} is beyond the values of {dtype}")
        if dtype.is_complex:
            return torch.tensor([pad_value, 0], dtype=dtype.to_real()).view(dtype)
        return torch.tensor([pad_value], dtype=dtype)
    low, high = _integer_range(dtype)
    if not low <= pad_value <= high or int(pad_value) != pad_value:
        raise ValueError(f"field {field!r}: pad value {pad_value!r} is not a value of {dtype}")
    if dtype is _TWO_IN_A_BYTE:
        return torch.zeros(1, dtype=torch.uint8).view(dtype)
    return torch.tensor([int(pad_value)], dtype=dtype)


def _integer_range(dtype: torch.dtype) -> tuple[int, int]:
    if dtype is _TWO_IN_A_BYTE:
        return 0, 0  # torch cannot convert numbers to this type; a zero byte is two zeros
    if dtype is torch.bool:
        return 0, 1
    info = torch.iinfo(dtype)
    return info.min, info.max

"""The kinds of columns that a batch may hold, and the rows of each.

- tensor: rows are along dim 0, also in torch.jagged nested tensors (see _jagged).
- PackedTensor: one entry is one row.
- list and ndarray (mostly object arrays): one element along the first axis is one row.

Access to the rows of any other value raises a TypeError that names the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dataplane_client._common.arrays import Int64Array
from dataplane_client.batched_data_dict._jagged import JaggedColumns
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor

Columns = Mapping[str, Any]


def count_rows(key: str, value: object) -> int:
    if isinstance(value, torch.Tensor) and value.ndim > 0:
        return int(value.size(0))  # a strided nested tensor has no shape
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return int(value.shape[0])
    if isinstance(value, (PackedTensor, list)):
        return len(value)
    kind = f"0-d {type(value).__name__}" if isinstance(value, (torch.Tensor, np.ndarray)) else type(value).__name__
    raise TypeError(f"column {key!r} has no rows: expected a tensor, PackedTensor, list or ndarray, got a {kind}")


def describe(value: object) -> tuple[str, str]:
    """A column's element type and shape, for people; "*" for a ragged dimension."""
    if isinstance(value, torch.Tensor):
        where = "" if value.device.type == "cpu" else f" on {value.device}"
        shape = ["?"] if value.is_nested and value.layout is not torch.jagged else list(value.shape)
        sizes = ", ".join(str(size) if type(size) is int else "*" for size in shape)
        return f"{value.dtype}".removeprefix("torch.") + where, f"({sizes})"
    if isinstance(value, np.ndarray):
        return str(value.dtype), str(value.shape)
    return type(value).__name__, f"({len(value)})" if isinstance(value, (list, PackedTensor)) else "()"


def first_column_rows(columns: Columns) -> int:
    """Rows of the first column, 0 without columns."""
    return next((count_rows(key, value) for key, value in columns.items()), 0)


def require_equal_rows(columns: Columns, complaint: str) -> int:
    """The number of rows of every column; AssertionError opening with complaint when they differ."""
    rows = {key: count_rows(key, value) for key, value in columns.items()}
    sizes = sorted(set(rows.values()))
    if len(sizes) > 1:
        raise AssertionError(f"{complaint}, found sizes: {sizes} ({rows})")
    return sizes[0] if sizes else 0


def slice_rows(columns: Columns, start: int, end: int) -> dict[str, Any]:
    """Rows [start, end). Tensors are views and must have at least end rows; shorter lists and arrays give fewer."""
    if not 0 <= start <= end:
        raise ValueError(f"a slice of rows must have 0 <= start <= end, got start {start} and end {end}")
    jagged = JaggedColumns()
    return {key: _slice(key, value, start, end, jagged) for key, value in columns.items()}


def _slice(key: str, value: Any, start: int, end: int, jagged: JaggedColumns) -> Any:
    rows = count_rows(key, value)
    if isinstance(value, (torch.Tensor, PackedTensor)) and end > rows:
        raise AssertionError(f"slice end {end} is greater than the shape of the tensor {key!r}, which has {rows} rows")
    if isinstance(value, PackedTensor):
        return value.slice(range(start, end))
    if isinstance(value, torch.Tensor) and value.is_nested:
        return jagged.slice(key, value, start, end)
    return value[start:end]


def take_rows(columns: Columns, rows: list[int]) -> dict[str, Any]:
    """The given rows, in that order. Tensors and arrays are copies; lists and PackedTensors share their rows."""
    index, jagged = np.array(rows, np.int64), JaggedColumns()
    return {key: _take(key, value, index, jagged) for key, value in columns.items()}


def _take(key: str, value: Any, index: Int64Array, jagged: JaggedColumns) -> Any:
    count_rows(key, value)
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return jagged.take(key, value, index)
        return value[torch.from_numpy(index).to(value.device, non_blocking=True)]
    if isinstance(value, np.ndarray):
        return value[index]
    return value.slice(index.tolist()) if isinstance(value, PackedTensor) else [value[row] for row in index.tolist()]

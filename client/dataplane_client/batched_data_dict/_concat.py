"""Joins batches row-wise. Sequences of different widths are padded on the right of dim 1 to the widest.

Batches without rows are ignored: they may lack columns, and their widths and dtypes do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from dataplane_client._values.padding import widen
from dataplane_client.batched_data_dict._columns import Columns, count_rows, first_column_rows
from dataplane_client.batched_data_dict._jagged import JaggedColumns
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor

PadValues = Mapping[str, float]


def concat_batches(given: Iterable[Columns], pad_values: PadValues) -> dict[str, Any]:
    batches, jagged = list(given), JaggedColumns()
    keys = sorted(set(chain.from_iterable(batches)))
    return {key: _concat(key, _parts(key, batches), pad_values.get(key, 0), jagged) for key in keys}


def _parts(key: str, batches: Sequence[Columns]) -> list[Any]:
    """The column's values that have rows, or one without rows when none has."""
    lacking = [i for i, batch in enumerate(batches) if key not in batch and first_column_rows(batch)]
    if lacking:
        raise KeyError(f"key {key!r} is missing from non-empty batches {lacking}")
    values = [batch[key] for batch in batches if key in batch]
    return [value for value in values if not _is_rowless(key, value)] or values[:1]


def _is_rowless(key: str, value: object) -> bool:
    """Whether value is a column of length 0; False for a value that is not a column, which _concat refuses."""
    try:
        return count_rows(key, value) == 0
    except TypeError:
        return False


def _concat(key: str, values: list[Any], pad_value: float, jagged: JaggedColumns) -> Any:
    if all(isinstance(value, list) for value in values):
        return list(chain.from_iterable(values))
    if all(isinstance(value, PackedTensor) for value in values):
        return PackedTensor.concat(values)
    try:
        if all(isinstance(value, np.ndarray) and value.ndim for value in values):
            return np.concatenate(values)
        if all(isinstance(value, torch.Tensor) and value.is_nested for value in values):
            return jagged.join(key, values)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"column {key!r} cannot be joined: {error}") from None
    if all(isinstance(value, torch.Tensor) and value.ndim and not value.is_nested for value in values):
        return _concat_tensors(key, values, pad_value)
    kinds = sorted({type(value).__name__ for value in values})
    raise NotImplementedError(
        f"column {key!r} cannot be joined: expected only lists, PackedTensors, ndarrays, nested tensors "
        f"or tensors with rows, got {', '.join(kinds)}"
    )


def _concat_tensors(key: str, tensors: list[torch.Tensor], pad_value: float) -> torch.Tensor:
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    if len({(len(shape), shape[2:]) for shape in shapes}) > 1:
        raise ValueError(f"tensors of column {key!r} differ in more than rows and width, found shapes {shapes}")
    if tensors[0].ndim == 1:
        return torch.cat(tensors)
    width = max(tensor.shape[1] for tensor in tensors)
    return torch.cat([one if one.shape[1] == width else widen(key, one, pad_value, width) for one in tensors])

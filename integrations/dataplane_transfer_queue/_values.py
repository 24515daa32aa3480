"""Columns as TransferQueue's callers give and get them, and as we store them.

TransferQueue holds a value for each row and field on its own: rows of a field may differ in every dimension, and come
back as nested tensors, even if all have one shape. The rows of our fields differ in their first dimension only. So

- one number a row, and rows of one dimension, are stored as they are given;
- rows of more dimensions, such as position ids (4, tokens), are stored as their entries, (entries, 1), with their
  shapes in a second field, `NAME[shape]`; so the server keeps them apart from rows of one dimension;
- tensors in an object column, one a row and of one kind, are stored as such rows;
- all else is objects. Tuples stay tuples; TransferQueue makes lists of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, is_non_tensor

from dataplane_client.codec import is_object_leaf, object_leaf, object_rows

SHAPE = "[shape]"
"""The end of the name of a field of shapes."""


def stored_columns(fields: Mapping[str, Any], rows: int) -> dict[str, object]:
    """The columns to put. Raises ValueError for objects of another number of rows, and for a name that is reserved."""
    columns: dict[str, object] = {}
    for name, column in fields.items():
        if name.endswith(SHAPE):
            raise ValueError(f"field {name!r}: names that end with {SHAPE!r} are reserved")
        columns.update(_stored(name, column, rows))
    return columns


def _stored(name: str, column: Any, rows: int) -> dict[str, object]:
    if isinstance(column, torch.Tensor) and column.dim() <= 2:
        return {name: column}
    if _is_dense(column):
        return {name: column.flatten(1)[..., None], name + SHAPE: torch.tensor([column.shape[1:]] * rows)}
    if _is_block(column):
        return _stored_block(name, column, column.offsets().diff())
    tensors = _tensors(name, column, rows)
    if not tensors or tensors[0].dim() == 1:
        return {name: tensors or column}
    if tensors[0].dim() == 0:
        return {name: torch.stack(tensors)}
    return {name: [row.reshape(-1, 1) for row in tensors], name + SHAPE: torch.tensor([row.shape for row in tensors])}


def _is_block(column: Any) -> bool:
    """Whether it is jagged in the first dimension of its rows, which are one block of memory."""
    is_jagged = isinstance(column, torch.Tensor) and column.layout is torch.jagged and column.is_contiguous()
    return is_jagged and not isinstance(column.shape[1], int)


def _stored_block(name: str, column: torch.Tensor, lengths: torch.Tensor) -> dict[str, object]:
    trailing = [int(size) for size in column.shape[2:]]
    shapes = torch.cat([lengths[:, None], torch.tensor([trailing], device=lengths.device).expand(len(lengths), -1)], 1)
    return {name: _jagged(column.values().reshape(-1, 1), lengths * math.prod(trailing)), name + SHAPE: shapes}


def _tensors(name: str, column: Any, rows: int) -> list[torch.Tensor]:
    """The rows of a nested tensor, or of objects that are tensors of one element type and number of dimensions. None of
    other columns.
    """
    if isinstance(column, torch.Tensor):
        return list(column.unbind())
    if not is_object_leaf(column):
        return []
    values = list(object_rows(name, column, rows))
    kinds = {(value.dtype, value.dim()) if _is_dense(value) else None for value in values}
    return values if len(kinds) == 1 and None not in kinds else []


def _is_dense(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_nested


def are_entries(column: object) -> bool:
    """Whether a column that was read has rows as those that are stored with shapes."""
    return isinstance(column, torch.Tensor) and column.dim() == 3 and column.shape[-1] == 1


def given_columns(found: TensorDict, names: Iterable[str], order: Sequence[int] | None = None) -> TensorDict:
    """The columns that a caller gets, of those that were read. order: which of the rows, perhaps some twice."""
    columns = {name: _given(found.get(name), found.get(name + SHAPE, None)) for name in names}
    if order is None:
        return TensorDict(columns, batch_size=found.batch_size)
    return TensorDict({name: _picked(column, order) for name, column in columns.items()}, batch_size=[len(order)])


def _given(column: Any, shapes: torch.Tensor | None) -> Any:
    if shapes is not None:
        return _reshaped(column, shapes)
    if is_non_tensor(column) or column.is_nested or column.dim() < 2:
        return column
    return _jagged(column.flatten(0, 1), torch.full((column.shape[0],), column.shape[1]))


def _reshaped(column: torch.Tensor, shapes: torch.Tensor) -> Any:
    if shapes.is_nested:  # rows of different numbers of dimensions
        return object_leaf([row.view(*shape) for row, shape in zip(column.unbind(), shapes.unbind(), strict=True)])
    trailing = shapes[0, 1:].tolist()
    if 0 in trailing or bool((shapes[:, 1:] != shapes[:1, 1:]).any()):
        return nested([row.view(shape) for row, shape in zip(column.unbind(), shapes.tolist(), strict=True)])
    entries = column.values() if column.is_nested else column.flatten()
    return _jagged(entries.view(-1, *trailing), shapes[:, 0])


def _jagged(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    jagged: torch.Tensor = torch.nested.nested_tensor_from_jagged(values, offsets)
    return jagged


def nested(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Jagged if the rows differ in one dimension at most, otherwise strided."""
    try:
        return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
    except RuntimeError:
        return torch.nested.as_nested_tensor(list(rows), layout=torch.strided)


def _picked(column: Any, order: Sequence[int]) -> Any:
    if is_non_tensor(column):
        values = object_rows("", column, column.batch_size[0])
        return object_leaf([values[row] for row in order])
    if not column.is_nested:
        return column[list(order)]
    rows = column.unbind()
    return nested([rows[row] for row in order])

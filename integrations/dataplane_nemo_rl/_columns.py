"""What the columns of NeMo-RL's puts need: the tokens of their rows, and values of the type that a field holds.

A field keeps the kind and element type of its first put, and NeMo-RL's writers are not that strict: a column is empty,
or int32, or an array of objects now and then. A column that does not fit is converted if that changes no value, except
that float64 may be rounded to float32, as everywhere in the client. What cannot be converted stays as it is, and the
server refuses it with both types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDictBase

from dataplane_client.codec import count_rows, is_object_leaf, object_rows, plain_column, read_jagged, torch_dtype
from dataplane_client.records.descriptions import FieldDescription

Fields = TensorDictBase | Mapping[str, object]

_LENGTHS_FIELD = "input_lengths"
_ROUNDING = 2.0**-23


def row_tokens(
    fields: Fields | None, tags: Sequence[Mapping[str, Any]] | None, tokens_field: str
) -> Sequence[int] | None:
    """Tokens of each row, for the metas of claims: the tags `input_lengths`, or the entries of the tokens field. None
    if a put says neither, and for one with a column `input_lengths`, which the client reads.
    """
    if fields is not None and fields.get(_LENGTHS_FIELD) is not None:
        return None
    tagged = [row.get(_LENGTHS_FIELD) for row in tags or ()]
    if tagged and all(isinstance(length, (int, np.integer)) for length in tagged):
        return [int(length or 0) for length in tagged]
    column = None if fields is None else fields.get(tokens_field)
    if not isinstance(column, torch.Tensor) or column.dim() < 2:
        return None
    lengths = read_jagged(column, tokens_field).lengths if column.is_nested else np.full(len(column), column.shape[1])
    return [int(length) for length in lengths]


def fitted(fields: Fields, held: Mapping[str, FieldDescription]) -> dict[str, object]:
    """The columns as the fields of a partition hold them, where no value changes. held: its fields by name."""
    return {name: _fitted(name, column, held.get(name)) for name, column in fields.items()}


def _fitted(name: str, column: object, field: FieldDescription | None) -> object:
    if field is None or field.kind is None:
        return column
    if field.kind == "object":
        return NonTensorStack(*column.unbind()) if isinstance(column, torch.Tensor) else column
    numbers = _numbers(name, column)
    if numbers is None:
        return column
    if not numbers.numel():
        return [[] for _ in range(numbers.size(0))]  # rows without entries, of any field
    cast = numbers.to(torch_dtype(field.dtype))
    return cast if _survives(_entries(numbers), _entries(cast)) else column


def _numbers(name: str, column: object) -> torch.Tensor | None:
    """A column as a tensor, if each of its rows is a number or a tensor, and all are of one type."""
    if is_object_leaf(column):
        try:
            column = plain_column(name, list(object_rows(name, column, count_rows(column) or 0)))
        except (TypeError, ValueError):
            return None
    return column if isinstance(column, torch.Tensor) else None


def _entries(tensor: torch.Tensor) -> torch.Tensor:
    return read_jagged(tensor, "").packed() if tensor.is_nested else tensor


def _survives(old: torch.Tensor, cast: torch.Tensor) -> bool:
    """Whether every number is still the same; a float that stays one, at least to the precision of float32."""
    back = cast.to(old.dtype)
    rounding = _ROUNDING if old.is_floating_point() and cast.is_floating_point() else 0.0
    if old.is_floating_point():  # float64 holds them all, and float8 cannot be compared
        old, back = old.double(), back.double()
    return bool(torch.isclose(back, old, rtol=rounding, atol=0.0, equal_nan=True).all())

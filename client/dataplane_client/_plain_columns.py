"""Columns as callers write them, lists and arrays with one entry for each row, as tensors or rows of objects.

| a column of | is |
|---|---|
| a NumPy array of numbers (N, ...) | dense |
| numbers, 0-d tensors or NumPy scalars | dense, (N,) |
| tensors, arrays, or lists of numbers, each (length, ...) | jagged, whatever their lengths |
| anything else: str, bytes, dict, None, lists and tuples that hold such | objects, one a row |

Python numbers become torch's types for them: bool, int64, or the default type for floats (float32 unless it was
changed). Tensors, arrays and NumPy scalars keep their element type. An array of dtype object is a ragged column if all
its rows are tensors or arrays, and objects otherwise. What may be meant in more than one way is refused: rows that
differ in element type or rank, and rows of numbers beside other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from tensordict import is_non_tensor

from dataplane_client._arrays import ObjectArray
from dataplane_client._jagged import build_jagged, split_rows
from dataplane_client._object_leaves import RowName, object_array, row_number

_MAX_DEPTH: Final = 8
_PYTHON_NUMBERS: Final = frozenset({bool, int, float})
_LISTS: Final = frozenset({list, tuple})
_NUMBERS: Final = "biufc"
_AS_OBJECTS: Final = "to store each row as an object, put a tensordict.NonTensorStack"

Array = npt.NDArray[Any]


def plain_column(field: str, value: object, row_name: RowName = row_number) -> object:
    """A column of lists or arrays as a tensor, nested where rows differ in length, or as an object array (N,). Tensors
    and non-tensor leaves of a TensorDict are returned unchanged.

    Raises TypeError for a type that is no column, and ValueError for rows that do not fit together. Errors name the
    field, and the row if it is about one.
    """
    if isinstance(value, torch.Tensor) or is_non_tensor(value):
        return value
    if isinstance(value, (list, tuple)):
        return _of_rows(field, value, row_name)
    if isinstance(value, (bool, int, float, np.generic)):
        raise ValueError(f"field {field!r}: one {type(value).__name__} for all rows; give a list with one for each row")
    if not isinstance(value, np.ndarray):
        got = type(value).__name__
        raise TypeError(f"field {field!r}: unsupported value type {got}; give a list with one value for each row")
    if value.ndim == 0:
        raise ValueError(f"field {field!r}: a 0-d array; its first dimension must be the rows")
    if value.dtype.kind in "US":
        return object_array(field, value.tolist(), len(value))
    if value.dtype.kind != "O":
        return _tensor(f"field {field!r}", value)
    if value.ndim == 1 and len(value) and all(isinstance(row, (torch.Tensor, np.ndarray)) for row in value):
        return _stack(field, list(value), row_name)
    return value


def _tensor(where: str, value: torch.Tensor | Array) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach()
    native = np.ascontiguousarray(value, value.dtype.newbyteorder("="))
    try:
        fit = native.flags.writeable and min(native.strides, default=0) >= 0  # a reversed entry
        return torch.from_numpy(native if fit else native.copy()).reshape(value.shape)
    except TypeError:
        raise TypeError(f"{where}: an ndarray of {value.dtype}, which torch does not have") from None


def _of_rows(field: str, rows: Sequence[object], row_name: RowName) -> torch.Tensor | ObjectArray:
    if not rows:
        return torch.empty(0)
    if all(isinstance(row, (torch.Tensor, np.ndarray)) for row in rows):
        return _stack(field, rows, row_name)
    kinds = _leaf_kinds(rows)
    if not kinds:
        raise ValueError(f"field {field!r}: all rows are empty lists, which have no element type; give empty tensors")
    numeric = all(map(_is_number, kinds))
    if not numeric and not any(map(_is_numeric, rows)):
        return object_array(field, rows, len(rows))
    if not numeric or len(set(map(_is_list, rows))) > 1:
        raise ValueError(_mixed(field, rows, row_name))
    return _of_numbers(field, rows, _element_type(field, rows, kinds, row_name), row_name)


def _leaf_kinds(rows: Sequence[object]) -> set[type]:
    """The types of the rows, or of what their lists hold in the end; list itself if that is too deep."""
    kinds: set[type] = set()
    for _ in range(_MAX_DEPTH):
        found = set(map(type, rows))
        kinds |= found - _LISTS
        if not found & _LISTS:
            return kinds
        rows = list(chain.from_iterable(row for row in rows if isinstance(row, (list, tuple))))
    return kinds | {list}


def _is_list(row: object) -> bool:
    return type(row) in _LISTS


def _is_number(kind: type) -> bool:
    return kind in _PYTHON_NUMBERS or (issubclass(kind, np.generic) and np.dtype(kind).kind in _NUMBERS)


def _is_numeric(row: object) -> bool:
    """Whether a row is a number, or a list of nothing but numbers (at least one)."""
    kinds = _leaf_kinds([row])
    return bool(kinds) and all(map(_is_number, kinds))


def _mixed(field: str, rows: Sequence[object], row_name: RowName) -> str:
    """The message for rows of numbers beside other rows, and for numbers beside lists of numbers."""
    known = [row for row, value in enumerate(rows) if _leaf_kinds([value])]
    numeric = next(row for row in known if _is_numeric(rows[row]))
    other = next(
        row for row in known if not _is_numeric(rows[row]) or _is_list(rows[row]) is not _is_list(rows[numeric])
    )
    advice = "give a number, such as nan, or put only the rows that have one" if rows[other] is None else _AS_OBJECTS
    return (
        f"field {field!r}, {row_name(other)}: {_described(rows[other])}, but {row_name(numeric)} is "
        f"{_described(rows[numeric])}; the rows of a column are of one kind ({advice})"
    )


def _described(row: object) -> str:
    kinds = " and ".join(sorted({"number" if _is_number(kind) else kind.__name__ for kind in _leaf_kinds([row])}))
    if row is None:
        return "None"
    return f"a {type(row).__name__} of {kinds}" if _is_list(row) else kinds


def _element_type(field: str, rows: Sequence[object], kinds: set[type], row_name: RowName) -> np.dtype[Any] | None:
    """The NumPy type to read numbers with; None for Python floats, which torch's default type is for."""
    if kinds <= {int, float} and float in kinds:
        return None
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        first = _leaf_kinds(rows[:1])
        row = next((row for row, value in enumerate(rows) if _leaf_kinds([value]) - first), 0)
        raise ValueError(
            f"field {field!r}, {row_name(row)}: numbers of different types in one column ({names}); convert them to one"
        )
    return np.dtype(next(iter(kinds)))


def _of_numbers(field: str, rows: Sequence[object], dtype: np.dtype[Any] | None, row_name: RowName) -> torch.Tensor:
    if not _is_list(rows[0]):
        return _numbers(field, rows, dtype)
    listed: list[Sequence[object]] = [row for row in rows if isinstance(row, (list, tuple))]
    flat = list(chain.from_iterable(listed))
    if not any(map(_is_list, flat)):
        lengths = np.array(list(map(len, listed)), np.int64)
        return _joined(_numbers(field, flat, dtype), lengths)
    arrays = [_row_numbers(field, row, dtype, row_name(index)) for index, row in enumerate(listed)]
    trailing = next(array.shape[1:] for array in arrays if array.numel())
    return _stack(field, [array if array.numel() else array.reshape(0, *trailing) for array in arrays], row_name)


def _numbers(field: str, values: Iterable[object], dtype: np.dtype[Any] | None) -> torch.Tensor:
    try:
        array: Array = np.array(values, np.float64 if dtype is None else dtype)
    except OverflowError:
        raise ValueError(f"field {field!r}: an integer needs more than 64 bits") from None
    return (
        torch.from_numpy(array).to(torch.get_default_dtype()) if dtype is None else _tensor(f"field {field!r}", array)
    )


def _row_numbers(field: str, row: Sequence[object], dtype: np.dtype[Any] | None, name: str) -> torch.Tensor:
    try:
        return _numbers(field, row, dtype)
    except ValueError:
        raise ValueError(
            f"field {field!r}, {name}: its lists differ in length or depth; {_ONE_RAGGED_DIMENSION}"
        ) from None


_ONE_RAGGED_DIMENSION: Final = (
    "only the first dimension of rows may differ. Flatten the rows and put their shapes as a column beside them, or, "
    f"{_AS_OBJECTS}"
)


def _stack(field: str, rows: Sequence[object], row_name: RowName) -> torch.Tensor:
    """Tensors and arrays as one tensor: (N, ...) if they have one shape, otherwise nested."""
    tensors = [
        _tensor(f"field {field!r}, {row_name(index)}", row)
        for index, row in enumerate(rows)
        if isinstance(row, (torch.Tensor, np.ndarray))
    ]
    for index, row in enumerate(tensors):
        _check_fits(field, row, tensors[0], row_name, index)
    if all(row.shape == tensors[0].shape for row in tensors):
        return torch.stack(tensors)
    lengths = np.array([row.shape[0] for row in tensors], np.int64)
    return build_jagged(torch.cat(tensors), split_rows(lengths, tensors[0].device))


def _check_fits(field: str, row: torch.Tensor, first: torch.Tensor, row_name: RowName, index: int) -> None:
    where = f"field {field!r}, {row_name(index)}"
    if row.is_nested or row.layout is not torch.strided:
        raise TypeError(f"{where}: a {'nested' if row.is_nested else row.layout} tensor; make it dense first")
    for what, found, expected in (
        ("element type", row.dtype, first.dtype),
        ("number of dimensions", row.dim(), first.dim()),
        ("device", row.device, first.device),
    ):
        if found != expected:
            raise ValueError(
                f"{where}: the {what} is {found}, but that of {row_name(0)} is {expected}; all rows must have one"
            )
    if row.shape[1:] != first.shape[1:]:
        raise ValueError(
            f"{where}: shape {tuple(row.shape)}, but {row_name(0)} has {tuple(first.shape)}; {_ONE_RAGGED_DIMENSION}"
        )


def _joined(values: torch.Tensor, lengths: npt.NDArray[np.int64]) -> torch.Tensor:
    """Rows that adjoin in values, as `_stack` returns them."""
    if (lengths == lengths[0]).all():
        return values.reshape(len(lengths), int(lengths[0]))
    return build_jagged(values, split_rows(lengths, values.device))

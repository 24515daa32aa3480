"""Columns as callers write them, lists and arrays with one entry for each row, as tensors or rows of objects.

| a column of | is |
|---|---|
| a NumPy array of numbers (N, ...) | dense |
| numbers, 0-d tensors or NumPy scalars | dense, (N,) |
| tensors, arrays, or lists of numbers, each (length, ...) | jagged, whatever their lengths |
| tensors or arrays that differ in a later dimension | objects, one a row |
| anything else; an array of dtype object | objects, one a row |
| nothing but empty lists | what the field holds, which the server knows (`_requests.field_kinds`) |

A tuple is a list here. Python numbers become torch's types for them: bool, int64, or the default type for floats
(float32 unless it was changed). Tensors, arrays and NumPy scalars keep their element type.

A row that is no number, text, None, array or list of numbers makes every row of its list an object, wherever it is.
Without such a row, numbers and lists of numbers beside rows of another kind are refused, for they are likely mistakes.
So are tensors and arrays that differ in element type or rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from tensordict import is_non_tensor

from dataplane_client._common.arrays import EmptyRows
from dataplane_client._values.jagged import build_jagged, split_rows
from dataplane_client._values.object_leaves import RowName, object_array, row_number, stack_item

_MAX_DEPTH: Final = 8
_PYTHON_NUMBERS: Final = frozenset({bool, int, float})
_LISTS: Final = frozenset({list, tuple})
_NUMBERS: Final = "biufc"
_ONE_RAGGED_DIMENSION: Final = (
    "only the first dimension of rows may differ. Flatten the rows and put their shapes as a column beside them"
)
AS_OBJECTS: Final = "to store each row as an object, put tensordict.NonTensorStack(*rows)"

Array = npt.NDArray[Any]


def plain_column(field: str, value: object, row_name: RowName = row_number) -> object:
    """A column of lists or arrays as a tensor, nested where rows differ in length, or as an object array (N,); it is
    EmptyRows if all rows are empty lists. Tensors and non-tensor leaves of a TensorDict are returned unchanged.

    Raises TypeError for a type that is no column, and ValueError for rows that do not fit together. Errors name the
    field, and the row if it is about one.
    """
    if isinstance(value, torch.Tensor) or is_non_tensor(value):
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided and not value.is_nested:
            raise TypeError(
                f"field {field!r}: unsupported {value.layout} tensor on {value.device}; make it dense first"
            )
        return value
    column: torch.Tensor | Array | list[object]
    if isinstance(value, (list, tuple)):
        column = _of_rows(field, value, row_name)
    elif isinstance(value, (bool, int, float, np.generic)):
        raise ValueError(f"field {field!r}: one {type(value).__name__} for all rows; give a list with one for each row")
    elif not isinstance(value, np.ndarray):
        got = type(value).__name__
        raise TypeError(f"field {field!r}: unsupported value type {got}; give a list with one value for each row")
    elif value.ndim == 0:
        raise ValueError(f"field {field!r}: a 0-d array; its first dimension must be the rows")
    elif value.dtype.kind in "US":
        column = value.tolist()
    else:
        column = value if value.dtype.kind == "O" else _tensor(f"field {field!r}", value)
    return object_array(field, column, len(column)) if isinstance(column, list) else column


def _tensor(where: str, value: Array) -> torch.Tensor:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{where}: a masked array, whose mask would be lost; put value.filled(...)")
    native = np.ascontiguousarray(value, value.dtype.newbyteorder("="))
    try:
        fit = native.flags.writeable and min(native.strides, default=0) >= 0  # a reversed entry
        return torch.from_numpy(native if fit else native.copy()).reshape(value.shape)
    except TypeError:
        raise TypeError(f"{where}: an ndarray of {value.dtype}, which torch does not have") from None


def _of_rows(field: str, rows: Sequence[object], row_name: RowName) -> torch.Tensor | EmptyRows | list[object]:
    """A list is of objects, one a row."""
    if not rows:
        return torch.empty(0)
    if all(map(_is_array, rows)):
        tensors = _checked_tensors(field, rows, row_name)
        return list(rows) if ragged_later(tensors, row_name) else _stack(tensors)
    kinds = _leaf_kinds(rows)
    if not kinds:
        return np.fromiter(rows, object, len(rows)).view(EmptyRows)
    numbers = set(filter(_is_number, kinds))
    if numbers != kinds and (not numbers or any(map(_is_object, rows))):
        return list(map(stack_item, rows))
    if numbers != kinds or len(set(map(_is_list, rows))) > 1:
        raise ValueError(_mixed(field, rows, row_name))
    dtype = _element_type(field, rows, kinds, row_name)
    try:
        return _of_numbers(field, rows, dtype, row_name)
    except OverflowError:
        raise ValueError(_too_large(field, rows, dtype or np.dtype(np.float64), row_name)) from None


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


def _is_array(row: object) -> bool:
    return isinstance(row, torch.Tensor) or (isinstance(row, np.ndarray) and row.dtype.kind not in "OUS")


def _has_only_numbers(row: object) -> bool:
    """Whether a row is a number, or a list of numbers, be it empty."""
    return all(map(_is_number, _leaf_kinds([row])))


def _is_object(row: object) -> bool:
    """Whether a row is neither a number, text, None, an array nor a list of numbers."""
    return not (row is None or isinstance(row, str) or _is_array(row) or _has_only_numbers(row))


def _mixed(field: str, rows: Sequence[object], row_name: RowName) -> str:
    """The message for rows of numbers beside other rows, and for numbers beside lists of numbers."""
    numeric = next(row for row, value in enumerate(rows) if _has_only_numbers(value) and _leaf_kinds([value]))
    of_lists = _is_list(rows[numeric])
    other = next(
        row for row, value in enumerate(rows) if _is_list(value) is not of_lists or not _has_only_numbers(value)
    )
    missing = f"give {'an empty list' if of_lists else 'a number, such as nan'}, or put only the rows that have one"
    advice = missing if rows[other] is None else AS_OBJECTS
    return (
        f"field {field!r}, {row_name(other)}: {_described(rows[other])}, but {row_name(numeric)} is "
        f"{_described(rows[numeric])}; the rows of a column are of one kind ({advice})"
    )


def _described(row: object) -> str:
    kind = type(row).__name__
    if _is_list(row):
        return f"a {kind} of numbers" if row else f"an empty {kind}"
    return "None" if row is None else "a number" if _is_number(type(row)) else kind


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
    if _LISTS.isdisjoint(map(type, flat)):
        lengths = np.array(list(map(len, listed)), np.int64)
        return _joined(_numbers(field, flat, dtype), lengths)
    arrays = [_row_numbers(field, row, dtype, row_name(index)) for index, row in enumerate(listed)]
    trailing = next(array.shape[1:] for array in arrays if array.numel())
    arrays = [array if len(array) else array.reshape(0, *trailing) for array in arrays]
    tensors = _checked_tensors(field, arrays, row_name)
    if wrong := ragged_later(tensors, row_name):
        raise ValueError(f"field {field!r}, {wrong}, or, {AS_OBJECTS}")
    return _stack(tensors)


def _numbers(field: str, values: Iterable[object], dtype: np.dtype[Any] | None) -> torch.Tensor:
    array: Array = np.array(values, np.float64 if dtype is None else dtype)
    return (
        torch.from_numpy(array).to(torch.get_default_dtype()) if dtype is None else _tensor(f"field {field!r}", array)
    )


def _too_large(field: str, rows: Sequence[object], dtype: np.dtype[Any], row_name: RowName) -> str:
    """The message for the first row with an integer that dtype does not hold."""
    row = next(row for row, value in enumerate(rows) if _overflows(value, dtype))
    return (
        f"field {field!r}, {row_name(row)}: an integer that {dtype} does not hold; for integers up to 2**64 - 1 give "
        f"uint64 tensors or NumPy arrays, or, {AS_OBJECTS}"
    )


def _overflows(numbers: object, dtype: np.dtype[Any]) -> bool:
    try:
        np.array(numbers, dtype)
    except OverflowError:
        return True
    return False


def _row_numbers(field: str, row: Sequence[object], dtype: np.dtype[Any] | None, name: str) -> torch.Tensor:
    try:
        return _numbers(field, row, dtype)
    except ValueError:
        raise ValueError(
            f"field {field!r}, {name}: its lists differ in length or depth; {_ONE_RAGGED_DIMENSION}, or, {AS_OBJECTS}"
        ) from None


def _checked_tensors(field: str, rows: Sequence[object], row_name: RowName) -> list[torch.Tensor]:
    """Tensors and arrays as tensors of one element type, rank and device."""
    tensors = [
        row.detach() if isinstance(row, torch.Tensor) else _tensor(f"field {field!r}, {row_name(index)}", row)
        for index, row in enumerate(rows)
        if isinstance(row, (torch.Tensor, np.ndarray))
    ]
    kinds = {(row.dtype, row.dim(), row.device, row.layout, row.is_nested) for row in tensors}
    if len(kinds) > 1 or tensors[0].is_nested or tensors[0].layout is not torch.strided:
        for index, row in enumerate(tensors):
            _check_fits(field, row, tensors[0], row_name, index)
    return tensors


def ragged_later(rows: Sequence[torch.Tensor | Array], row_name: RowName) -> str:
    """Which row differs from row 0 in another dimension than its first, and what to do; "" if none does."""
    first = rows[0].shape
    odd = next((index for index, row in enumerate(rows) if row.shape[1:] != first[1:]), None)
    if odd is None:
        return ""
    shape = tuple(rows[odd].shape)
    return f"{row_name(odd)}: shape {shape}, but {row_name(0)} has {tuple(first)}; {_ONE_RAGGED_DIMENSION}"


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One tensor of all: (N, ...) if they have one shape, otherwise nested."""
    if len(tensors) == 1:
        return tensors[0].unsqueeze(0)
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
                f"{where}: the {what} is {found}, but that of {row_name(0)} is {expected}; all rows must have one "
                f"({AS_OBJECTS})"
            )


def _joined(values: torch.Tensor, lengths: npt.NDArray[np.int64]) -> torch.Tensor:
    """Rows that adjoin in values, as `_stack` returns them."""
    if (lengths == lengths[0]).all():
        return values.reshape(len(lengths), int(lengths[0]))
    return build_jagged(values, split_rows(lengths, values.device))

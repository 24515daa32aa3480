"""Columns whose kind only the server knows: empty lists, and columns of another kind than their field. Integers for a
field of floats are converted when the server has refused them, if the floats hold them exactly.

Nothing but empty lists are objects where the field holds objects, and rows without entries where it holds numbers. Only
the server knows which, so a put of such a column asks it first; that costs one more call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from dataplane_client._values.columns_layout import WireColumn, join_values
from dataplane_client._values.object_leaves import unpack_objects
from dataplane_client._values.plain_columns import AS_OBJECTS, ragged_later
from dataplane_client._values.wire_columns import name_of_row
from dataplane_client.errors import DataPlaneError, InvalidArgumentError
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.element_numbers import DTYPES_BY_NUMBER

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_MOST_EXACT = np.float64(2**53)  # not a float, which would be compared as a float16, infinite


def as_field_holds(
    column: WireColumn, fields: Mapping[str, pb.FieldDescription], where: str, sample_ids: Sequence[str]
) -> WireColumn:
    """The column; empty lists for a field of numbers as rows without numbers. Raises InvalidArgumentError for empty
    lists in a field that nothing was put into yet, and for empty entries where the field's have numbers.
    """
    field = fields.get(column.name)
    if not column.of_empty_lists or field is None or field.kind == pb.FIELD_KIND_OBJECT:
        return column  # the server refuses an undeclared field
    if field.kind == pb.FIELD_KIND_UNSPECIFIED:
        raise InvalidArgumentError(
            f"{where}, field {column.name!r}: all rows are empty lists, and the field has no element type yet; give "
            f"empty tensors, such as torch.empty((0, 4)), or, {AS_OBJECTS}"
        )
    entry_shape = field.row_shape[1:] if field.kind == pb.FIELD_KIND_DENSE else field.row_shape
    rows = unpack_objects(column.name, np.asarray(column.lengths), column.values)
    lengths = np.array([len(row) for row in rows if isinstance(row, (list, tuple))], np.int64)
    if lengths.any() and 0 not in entry_shape:
        row = name_of_row(sample_ids, int(lengths.argmax()))
        message = f"its entries have no numbers, but those of the field have the shape {tuple(entry_shape)}"
        raise InvalidArgumentError(f"{where}, field {column.name!r}, {row}: {message}", reason="FIELD_MISMATCH")
    dtype = DTYPES_BY_NUMBER[field.data_type]
    return WireColumn(column.name, "jagged", dtype, tuple(entry_shape), lengths, memoryview(b""))


def with_exact_floats(error: DataPlaneError, columns: Sequence[WireColumn]) -> list[WireColumn] | None:
    """The columns, with the integers of the one that was refused as floats if its field has floats, and these hold all
    of them exactly; else None.
    """
    name, dtype = error.details.get("field"), error.details.get("dtype", "")
    column = next((column for column in columns if column.name == name), None)
    if error.reason != "FIELD_MISMATCH" or column is None:
        return None
    floats = _exact_floats(column, dtype)
    return None if floats is None else [floats if one is column else one for one in columns]


def may_be_floats(error: DataPlaneError, columns: Sequence[WireColumn]) -> bool:
    """Whether a write may be refused for integers that are floats in its field once their padding is cut off, or as
    another one than that of its name which was applied, because that was sent with floats in their place.
    """
    refused = error.reason == "REQUEST_ID_USED" or error.details.get("dtype") in _FLOATS
    return refused and any("int" in column.dtype for column in columns)


def with_known_floats(columns: Sequence[WireColumn], partition: pb.Partition) -> list[WireColumn]:
    """The columns; integers as floats where the field is declared to have some, or holds some, that hold them
    exactly.
    """
    held = {field.name: DTYPES_BY_NUMBER.get(field.data_type, "") for field in partition.fields}
    dtypes = {**held, **partition.dtypes}
    return [_exact_floats(column, dtypes.get(column.name, "")) or column for column in columns]


def _exact_floats(column: WireColumn, dtype: str) -> WireColumn | None:
    """A column of integers as floats; None if it has no integers, or these floats do not hold them exactly."""
    if dtype not in _FLOATS or "int" not in column.dtype:
        return None
    given = np.frombuffer(join_values([column]), column.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        floats = given.astype("float32" if dtype == "bfloat16" else dtype)
        exact = bool(((np.abs(floats) <= _MOST_EXACT) & (floats.astype(given.dtype) == given)).all())
    if dtype == "bfloat16":  # the upper halves of float32
        halves = floats.view(np.uint16).reshape(-1, 2)
        exact, floats = exact and not halves[:, 0].any(), np.ascontiguousarray(halves[:, 1])
    if not exact:
        return None
    packed = replace(column, dtype=dtype, values=memoryview(floats.tobytes()))
    if column.starts is None:
        return packed
    sizes = packed.row_bytes(len(column.starts))
    return replace(packed, starts=np.cumsum(sizes) - sizes)


def raise_with_advice(error: DataPlaneError, columns: Sequence[WireColumn], sample_ids: Sequence[str]) -> None:
    """Raise the refusal of a column with what to give, if only one of the column and its field holds objects."""
    column = next((column for column in columns if column.name == error.details.get("field")), None)
    if error.reason != "FIELD_MISMATCH" or column is None:
        return
    advice = AS_OBJECTS if "the field holds object" in error.message else ""  # the details do not name the kind
    if column.kind == "object":
        rows = unpack_objects(column.name, np.asarray(column.lengths), column.values)
        arrays = [row for row in rows if isinstance(row, (torch.Tensor, np.ndarray))]
        if arrays and len(arrays) == len(rows):
            advice = ragged_later(arrays, partial(name_of_row, sample_ids)) or "to store numbers, put a list of them"
    if advice:
        raise InvalidArgumentError(f"{error.message} ({advice})", reason=error.reason, details=error.details) from None

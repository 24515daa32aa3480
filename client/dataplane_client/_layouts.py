"""Columns to messages and back. Knows bytes and shapes, no tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dataplane_client._field_layout import DTYPES, KINDS
from dataplane_client.columns_layout import ITEM_SIZES, ColumnLayout, WireColumn
from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb

KIND_NUMBERS = {kind: number for number, kind in KINDS.items()}
_DTYPE_NUMBERS = {name: number for number, name in DTYPES.items()}


def column_message(column: WireColumn) -> pb.Column:
    return pb.Column(
        name=column.name,
        kind=pb.FieldKind.ValueType(KIND_NUMBERS[column.kind]),
        data_type=pb.DataType.ValueType(_DTYPE_NUMBERS.get(column.dtype, 0)),
        row_shape=column.row_shape,
        row_lengths=b"" if column.lengths is None else int64_bytes(column.lengths),
    )


def int64_bytes(values: Sequence[int] | npt.NDArray[np.int64]) -> bytes:
    return np.asarray(values, "<i8").tobytes()


def int64s(data: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(data, "<i8").astype(np.int64, copy=False)


def column_layouts(header: pb.ReadColumnsHeader, request: pb.ReadColumnsRequest) -> list[ColumnLayout]:
    """The layouts of what a request reads. Raises InternalError for one that contradicts the request or itself."""
    names = [message.name for message in header.columns]
    if names != list(request.fields):
        raise InternalError(f"a read of the fields {list(request.fields)} brought {names}")
    return [_column_layout(message, len(request.sample_ids)) for message in header.columns]


def _column_layout(message: pb.Column, n_rows: int) -> ColumnLayout:
    kind, dtype, row_shape = KINDS.get(message.kind), DTYPES.get(message.data_type, ""), tuple(message.row_shape)
    if kind is None or (kind != "object" and dtype not in ITEM_SIZES):
        raise InternalError(f"field {message.name!r} came with an unknown kind or element type")
    lengths = None if kind == "dense" else _row_lengths(message, n_rows)
    return ColumnLayout(message.name, kind, dtype, row_shape, lengths)


def _row_lengths(message: pb.Column, n_rows: int) -> npt.NDArray[np.int64]:
    if len(message.row_lengths) != 8 * n_rows:
        raise InternalError(f"field {message.name!r} came with {len(message.row_lengths) / 8} rows instead of {n_rows}")
    lengths = int64s(message.row_lengths)
    if (lengths < 0).any():
        raise InternalError(f"field {message.name!r} came with a row of negative length")
    return lengths


def generations_of(packed: bytes, n_rows: int) -> list[int] | None:
    """Of the rows of an answer; None where it does not say."""
    return int64s(packed).tolist() if packed or not n_rows else None

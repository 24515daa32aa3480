"""Columns to messages and back. Knows bytes and shapes, no tensors."""

from __future__ import annotations

from dataplane_client._common.arrays import Int64Array, int64_bytes, int64s
from dataplane_client._values.columns_layout import ColumnLayout, WireColumn
from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.element_numbers import DTYPE_NUMBERS, DTYPES_BY_NUMBER, KIND_NUMBERS, KINDS_BY_NUMBER


def column_message(column: WireColumn) -> pb.Column:
    return pb.Column(
        name=column.name,
        kind=KIND_NUMBERS[column.kind],
        data_type=DTYPE_NUMBERS.get(column.dtype, pb.DATA_TYPE_UNSPECIFIED),
        row_shape=column.row_shape,
        row_lengths=b"" if column.lengths is None else int64_bytes(column.lengths),
        per_token=column.per_token,
    )


def column_layouts(header: pb.ReadColumnsHeader, request: pb.ReadColumnsRequest) -> list[ColumnLayout]:
    """The layouts of the columns that a read returns. Raises InternalError for a layout that contradicts the request
    or itself.
    """
    names = [message.name for message in header.columns]
    if names != list(request.fields):
        raise InternalError(f"the server answered a read of the fields {list(request.fields)} with the fields {names}")
    return [_column_layout(message, len(request.sample_ids)) for message in header.columns]


def _column_layout(message: pb.Column, n_rows: int) -> ColumnLayout:
    kind = KINDS_BY_NUMBER.get(message.kind)
    dtype = DTYPES_BY_NUMBER.get(message.data_type, "")
    if kind is None or (kind != "object" and not dtype):
        raise InternalError(f"field {message.name!r}: the server sent an unknown kind or element type")
    lengths = None if kind == "dense" else _row_lengths(message, n_rows)
    return ColumnLayout(message.name, kind, dtype, tuple(message.row_shape), lengths)


def _row_lengths(message: pb.Column, n_rows: int) -> Int64Array:
    if len(message.row_lengths) != 8 * n_rows:
        found = len(message.row_lengths) / 8
        raise InternalError(f"field {message.name!r}: the server sent lengths of {found:g} rows, {n_rows} were read")
    lengths = int64s(message.row_lengths)
    if (lengths < 0).any():
        raise InternalError(f"field {message.name!r}: the server sent a row of negative length")
    return lengths

"""How the core's records are carried, beyond the rules of `rl_dataplane.v1.records`: columns, arrays, tags, filters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgpack
import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.answers import FieldInfo, ReadColumn
from dataplane_server.core.calls.columns import ColumnSpec, Shape, shape_of
from dataplane_server.core.calls.filters import Filter
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array, Tags
from dataplane_server.service.translate.filters import filter_message, rows_that_fit
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.element_numbers import DTYPE_NUMBERS, DTYPES_BY_NUMBER, KIND_NUMBERS, KINDS_BY_NUMBER
from rl_dataplane.v1.records import Mapper

MAX_TAGS_BYTES = 64 * 1024


# -- of requests -------------------------------------------------------------------------------------------------------


def _column_spec(column: pb.Column) -> ColumnSpec:
    kind, dtype = KINDS_BY_NUMBER.get(column.kind, "dense"), DTYPES_BY_NUMBER.get(column.data_type, "")
    shape = shape_of(kind, dtype, tuple(column.row_shape))
    if column.kind not in KINDS_BY_NUMBER:
        raise Refusal(Reason.INVALID_REQUEST, f"field {column.name!r} has no kind", field=column.name)
    has_lengths = column.row_lengths or shape.kind != "dense"
    lengths = _int64s(column.name, column.row_lengths) if has_lengths else None
    return ColumnSpec(column.name, shape, lengths, column.per_token)


def _int64s(what: str, data: bytes) -> Int64Array:
    if len(data) % 8:
        message = f"{what}: {len(data)} bytes are not a multiple of 8, the size of a little-endian int64"
        raise Refusal(Reason.INVALID_REQUEST, message, field=what)
    return np.frombuffer(data, "<i8").astype(np.int64, copy=False)


def _tags(rows: Sequence[bytes]) -> list[Tags]:
    return [_unpacked_tags(row, packed) if packed else {} for row, packed in enumerate(rows)]


def _unpacked_tags(row: int, packed: bytes) -> Tags:
    try:
        if len(packed) > MAX_TAGS_BYTES:
            raise ValueError(f"{len(packed)} bytes, the limit is {MAX_TAGS_BYTES}")
        tags = msgpack.unpackb(packed, strict_map_key=True, max_ext_len=0)
        if not isinstance(tags, dict):
            raise ValueError(f"got {type(tags).__name__}, not a map")
        for key, value in tags.items():
            if isinstance(value, (list, dict)):  # msgpack could not pack all that it unpacks
                raise ValueError(f"tag {key[:40]!r} is a {type(value).__name__}")
    except (ValueError, msgpack.UnpackException) as error:
        message = f"tags of row {row} are not a valid msgpack map: {error}"
        raise Refusal(Reason.INVALID_REQUEST, message, row=row) from None
    return tags


# -- of answers --------------------------------------------------------------------------------------------------------


def column_message(column: ReadColumn) -> pb.Column:
    message = _layout(column.name, column.shape)
    if column.shape.kind != "dense":
        message.row_lengths = int64_bytes(column.entries)
    return message


def _field_description(info: FieldInfo) -> pb.FieldDescription:
    message = pb.FieldDescription(name=info.name, per_token=info.per_token, rows=info.rows, size_bytes=info.size_bytes)
    if info.shape is not None:
        layout = _layout(info.name, info.shape)
        message.kind, message.data_type = layout.kind, layout.data_type
        message.row_shape.extend(layout.row_shape)
    return message


def _layout(name: str, shape: Shape) -> pb.Column:
    return pb.Column(
        name=name,
        kind=pb.FieldKind.ValueType(KIND_NUMBERS[shape.kind]),
        data_type=pb.DataType.ValueType(DTYPE_NUMBERS.get(shape.dtype, 0)),
        row_shape=shape.row_shape,
    )


def packed_tags(tags: Tags) -> bytes:
    return msgpack.packb(tags) if tags else b""


def int64_bytes(values: Int64Array) -> bytes:
    return values.astype("<i8", copy=False).tobytes()


# -- both --------------------------------------------------------------------------------------------------------------

_NUMBERS = {
    "BatchUnit": "batch unit: {}; it must be ROWS or GROUPS",
    "ClaimOrder": "claim order: {}",
    "DrawStrategy": "draw strategy: {}; it must be UNIFORM, PRIORITIZED, FIFO or LIFO",
    "EvictFirst": "evict_first: {}",
    "ShardBalance": "shard balance: {}; it must be ROWS, TOKENS or GROUPS",
    "WhenExcluded": "policy for excluded rows: {}",
    "WhenFull": "when_full: {}",
    "WhenStale": "policy for stale rows: {}",
}
"""Numbers of enums in requests."""


def _unknown(enum: str, number: int) -> Refusal:
    return Refusal(Reason.INVALID_REQUEST, f"unknown {_NUMBERS[enum].format(number)}")


MAPPER = Mapper(
    reads={
        ColumnSpec: lambda _: _column_spec,
        Filter: lambda _: rows_that_fit,
        Int64Array: lambda name: partial(_int64s, name),
        Sequence[Tags]: lambda _: _tags,
    },
    writes={
        FieldInfo: _field_description,
        Filter: lambda terms: filter_message(terms) if terms else None,
        Int64Array: int64_bytes,
        Tags: packed_tags,
        npt.NDArray[np.float64]: lambda values: values.astype("<f8", copy=False).tobytes(),
        npt.NDArray[np.uint8]: lambda values: values.tobytes(),
    },
    unknown=_unknown,
)
"""Compiles pairs of a record and a message."""

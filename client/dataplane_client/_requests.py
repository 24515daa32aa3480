"""What callers hand in to messages, and columns that were read to tensors. Whatever cannot travel is refused here,
before anything is sent.
"""

from __future__ import annotations

import uuid
from collections.abc import ItemsView, Mapping, Sequence
from typing import Any

import msgpack
import torch
from tensordict import TensorDict, TensorDictBase

from dataplane_client._arguments import checked_count, checked_name, checked_names
from dataplane_client._object_leaves import object_array
from dataplane_client._placement import Destination, PlacedColumn, adjoining, decoding
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.columns_layout import WireColumn
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_client.meta import Tag
from dataplane_client.wire_columns import decode_columns, decode_leaves, encode_columns
from rl_dataplane.v1 import data_plane_pb2 as pb

Fields = TensorDictBase | Mapping[str, object]


def new_request_id() -> str:
    """A name for one logical call, the same for all its attempts."""
    return uuid.uuid4().hex


def wire_columns(fields: Fields | None, n_rows: int, where: str) -> list[WireColumn]:
    """The columns of fields that must have n_rows rows. UnsupportedTypeError or InvalidArgumentError name the field."""
    if fields is None:
        return []
    if not isinstance(fields, (TensorDictBase, Mapping)):
        raise UnsupportedTypeError(f"{where}: fields are a TensorDict or a mapping, got {type(fields).__name__}")
    checked_names("field name", fields.keys(), where)
    try:
        columns = encode_columns(fields)
    except TypeError as error:
        raise UnsupportedTypeError(f"{where}: {error}") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{where}: {error}") from None
    rows = _rows_of(fields, n_rows)
    if rows != n_rows:
        raise InvalidArgumentError(
            f"{where}: the fields have {rows} rows, but the call names {n_rows} samples", reason="ROW_COUNT_MISMATCH"
        )
    return columns


def _rows_of(fields: Fields, n_rows: int) -> int:
    if isinstance(fields, TensorDictBase):
        return int(fields.batch_size[0])
    counts = [len(value) for value in fields.values() if hasattr(value, "__len__")]
    return counts[0] if counts else n_rows


def row_tags(tags: Sequence[Mapping[str, Tag]] | None, n_rows: int, where: str) -> list[bytes]:
    """Tags as the contract packs them. Errors name the row."""
    if tags is None:
        return []
    if len(tags) != n_rows:
        raise InvalidArgumentError(
            f"{where}: tags for {len(tags)} rows, but the call names {n_rows} samples", reason="ROW_COUNT_MISMATCH"
        )
    return [_packed_tags(row, mapping, where) for row, mapping in enumerate(tags)]


def _packed_tags(row: int, tags: Mapping[str, Tag], where: str) -> bytes:
    if not isinstance(tags, Mapping):
        raise UnsupportedTypeError(f"{where}: the tags of row {row} are a mapping, got {type(tags).__name__}")
    items: ItemsView[object, object] = tags.items()  # whatever the annotations promise, callers hand in what they have
    for key, value in items:
        if not isinstance(key, str) or not (value is None or isinstance(value, (bool, int, float, str))):
            raise UnsupportedTypeError(
                f"{where}: tag {key!r} of row {row} is {type(value).__name__}; a tag is a str with a value None, bool, "
                "int, float or str"
            )
    try:
        packed: bytes = msgpack.packb(tags) if tags else b""
    except (OverflowError, ValueError) as error:
        raise InvalidArgumentError(f"{where}: tags of row {row} cannot be packed: {error}") from None
    return packed


def register_request(
    partition_id: str,
    fields: Sequence[str],
    num_samples: int,
    tasks: Sequence[str],
    grpo_group_size: int | None,
    enums: Mapping[str, Sequence[str]],
    per_token_fields: Sequence[str],
    max_deliveries: int,
) -> pb.RegisterPartitionRequest:
    where = f"register_partition {partition_id!r}"
    return pb.RegisterPartitionRequest(
        request_id=new_request_id(),
        partition_id=checked_name("partition id", partition_id, where),
        fields=checked_names("field name", fields, where),
        tasks=checked_names("task name", tasks, where),
        num_samples=checked_count("num_samples", num_samples, where, least=0, most=(1 << 63) - 1),
        grpo_group_size=None
        if grpo_group_size is None
        else checked_count("grpo_group_size", grpo_group_size, where, least=0, most=(1 << 32) - 1),
        enums={
            checked_name("field name", field, where): pb.EnumNames(names=checked_names("enum name", names, where))
            for field, names in enums.items()
        },
        per_token_fields=checked_names("per-token field name", per_token_fields, where),
        max_deliveries=checked_count("max_deliveries", max_deliveries, where, least=0, most=(1 << 32) - 1),
    )


COPIES = Destination(adjoining)
"""Columns for `tensors`, in memory of the caller's own."""

VIEWS = Destination(adjoining, views=True)
"""Columns for `tensors`, where possible in memory that the server shares."""


def tensors(columns: Sequence[PlacedColumn], n_rows: int) -> TensorDict:
    """The columns of a read, their rows adjoining, as a TensorDict of batch size [n_rows]."""
    with decoding():
        return decode_columns([_wire_column(column) for column in columns], n_rows)


def jagged_batch(columns: Sequence[PlacedColumn], n_rows: int) -> BatchedDataDict[Any]:
    """The same as a batch, as ``materialize`` makes it of those tensors in layout "jagged"."""
    with decoding():
        leaves = decode_leaves([_wire_column(column) for column in columns], n_rows)
    return BatchedDataDict(
        {
            name: leaf if isinstance(leaf, torch.Tensor) else object_array(name, leaf, n_rows)
            for name, leaf in leaves.items()
        }
    )


def _wire_column(column: PlacedColumn) -> WireColumn:
    layout = column.layout
    return WireColumn(layout.name, layout.kind, layout.dtype, layout.row_shape, layout.lengths, column.values.data)

"""What callers hand in to messages, and answers to metas. Whatever cannot travel is refused here, before anything is
sent.
"""

from __future__ import annotations

import uuid
from collections.abc import ItemsView, Mapping, Sequence

import msgpack
from rl_dataplane.v1 import data_plane_pb2 as pb
from tensordict import TensorDict, TensorDictBase

from dataplane_client._layouts import ColumnAssembler, column_message, int64_bytes, int64s
from dataplane_client.columns_layout import WireColumn
from dataplane_client.errors import InternalError, InvalidArgumentError, UnsupportedTypeError
from dataplane_client.meta import KVBatchMeta, Tag
from dataplane_client.wire_columns import decode_columns, encode_columns

Fields = TensorDictBase | Mapping[str, object]


def new_request_id() -> str:
    """A name for one logical call, the same for all its attempts."""
    return uuid.uuid4().hex


def wire_columns(fields: Fields | None, n_rows: int, where: str) -> list[WireColumn]:
    """The columns of fields that must have n_rows rows. UnsupportedTypeError or InvalidArgumentError name the field."""
    if fields is None:
        return []
    try:
        columns = encode_columns(fields)
    except TypeError as error:
        raise UnsupportedTypeError(f"{where}: {error}") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{where}: {error}") from None
    rows = _rows_of(fields, columns, n_rows)
    if rows != n_rows:
        raise InvalidArgumentError(
            f"{where}: the fields have {rows} rows, but the call names {n_rows} samples", reason="ROW_COUNT_MISMATCH"
        )
    return columns


def _rows_of(fields: Fields, columns: Sequence[WireColumn], n_rows: int) -> int:
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


def put_header(
    partition_id: str,
    sample_ids: Sequence[str],
    columns: Sequence[WireColumn],
    tags: Sequence[bytes],
    sequence_lengths: Sequence[int] | None,
) -> pb.PutSamplesHeader:
    return pb.PutSamplesHeader(
        request_id=new_request_id(),
        partition_id=partition_id,
        sample_ids=sample_ids,
        columns=[column_message(column) for column in columns],
        row_tags=tags,
        sequence_lengths=b"" if sequence_lengths is None else int64_bytes(sequence_lengths),
    )


def checked_ids(sample_ids: Sequence[str], where: str) -> list[str]:
    """The ids as a list. A plain str is refused: it would be taken for a list of its letters."""
    if isinstance(sample_ids, str):
        raise UnsupportedTypeError(f"{where}: sample ids are a sequence of str, got the str {sample_ids!r}")
    ids = list(sample_ids)
    for sample_id in ids:
        if not isinstance(sample_id, str):
            raise UnsupportedTypeError(f"{where}: a sample id is a str, got {type(sample_id).__name__}")
    return ids


def tensors(assembler: ColumnAssembler, n_rows: int) -> TensorDict:
    """The columns of a read as a TensorDict of batch size [n_rows]."""
    try:
        return decode_columns(assembler.columns, n_rows)
    except ValueError as error:
        raise InternalError(f"the server sent a column that cannot be decoded: {error}") from None


def claimed_meta(
    response: pb.ClaimSamplesResponse, partition_id: str, task_name: str, fields: Sequence[str], dp_rank: int | None
) -> KVBatchMeta:
    lengths = int64s(response.sequence_lengths).tolist()
    return KVBatchMeta(
        partition_id=partition_id,
        task_name=task_name,
        sample_ids=list(response.sample_ids),
        fields=list(fields),
        sequence_lengths=lengths if all(length >= 0 for length in lengths) else None,
        extra_info={} if dp_rank is None else {"dp_rank": dp_rank},
        tags=[msgpack.unpackb(packed) if packed else {} for packed in response.row_tags],
    )

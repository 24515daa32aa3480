"""Requests of partitions, puts, reads, lists and clears: what callers hand in, checked and packed into messages.

Checks come before anything is sent. An error begins with the call's name and names the wrong field or row.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, ItemsView, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import get_args

import msgpack
import numpy as np
import torch
from tensordict import TensorDictBase

from dataplane_client._common.arguments import (
    blame_caller,
    checked_count,
    checked_flag,
    checked_generations,
    checked_lengths,
    checked_mapping,
    checked_name,
    checked_names,
    optional_count,
)
from dataplane_client._common.arrays import generations_of, int64_bytes
from dataplane_client._requests.padded_puts import carried_lengths
from dataplane_client._requests.row_write import RowWrite
from dataplane_client._values.codec import Fields
from dataplane_client._values.column_messages import column_message
from dataplane_client._values.columns_layout import WireColumn
from dataplane_client._values.dtypes import dtype_name
from dataplane_client._values.wire_columns import encode_columns
from dataplane_client.errors import InvalidArgumentError, UnsupportedTypeError
from dataplane_client.records.filters import Where, filter_message
from dataplane_client.records.meta import KVBatchMeta, PutOutcome, Tag
from rl_dataplane.v1 import data_plane_pb2 as pb

GivenTag = Tag | np.generic | torch.Tensor
"""A tag as callers give it; NumPy scalars and 0-d tensors are stored as Python's values."""

GivenTags = Sequence[Mapping[str, GivenTag]]
"""One mapping for each row."""

TokenRange = tuple[int, int | None]
"""The first token and the end, exclusive; None for the end of the row."""

_OUTCOMES = get_args(PutOutcome)
_UINT32 = (1 << 32) - 1
_INT64 = (1 << 63) - 1


def new_request_id() -> str:
    """A name for one logical call, the same for all its attempts."""
    return uuid.uuid4().hex


# -- partitions --------------------------------------------------------------------------------------------------------


def register_request(
    partition_id: str,
    fields: Sequence[str],
    num_samples: int,
    tasks: Sequence[str],
    grpo_group_size: int | None,
    enums: Mapping[str, Sequence[str]],
    per_token_fields: Sequence[str],
    max_deliveries: int,
    *,
    replace: bool,
    open: bool,  # noqa: A002 - as in the contract
    clear_when_consumed: bool,
    dtypes: Mapping[str, str | torch.dtype],
    digests: bool,
) -> pb.RegisterPartitionRequest:
    where = f"register_partition {partition_id!r}"
    return pb.RegisterPartitionRequest(
        request_id=new_request_id(),
        partition_id=checked_name("partition id", partition_id, where),
        fields=checked_names("field name", fields, where),
        tasks=checked_names("task name", tasks, where),
        num_samples=checked_count("num_samples", num_samples, where, least=0, most=_INT64),
        grpo_group_size=optional_count("grpo_group_size", grpo_group_size, where, least=0, most=_UINT32),
        enums={
            checked_name("field name", field, where): pb.EnumNames(names=checked_names("enum name", names, where))
            for field, names in checked_mapping("enums", enums, where).items()
        },
        per_token_fields=checked_names("per-token field name", per_token_fields, where),
        max_deliveries=checked_count("max_deliveries", max_deliveries, where, least=0, most=_UINT32),
        replace=checked_flag("replace", replace, where),
        open=checked_flag("open", open, where),
        clear_when_consumed=checked_flag("clear_when_consumed", clear_when_consumed, where),
        dtypes={
            checked_name("field name", field, where): _name_of_dtype(field, dtype, where)
            for field, dtype in checked_mapping("dtypes", dtypes, where).items()
        },
        digests=checked_flag("digests", digests, where),
    )


def _name_of_dtype(field: str, dtype: object, where: str) -> str:
    if isinstance(dtype, str):
        return checked_name("dtype", dtype, where)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedTypeError(f"{where}, field {field!r}: a dtype must be torch's, or its name, got {dtype!r}")
    with blame_caller(where):
        return dtype_name(dtype, field)


def extend_request(
    partition_id: str,
    fields: Sequence[str],
    per_token_fields: Sequence[str],
    tasks: Sequence[str],
    num_samples: int | None,
) -> pb.ExtendPartitionRequest:
    where = f"extend_partition {partition_id!r}"
    return pb.ExtendPartitionRequest(
        request_id=new_request_id(),
        partition_id=checked_name("partition id", partition_id, where),
        fields=checked_names("field name", fields, where),
        per_token_fields=checked_names("per-token field name", per_token_fields, where),
        tasks=checked_names("task name", tasks, where),
        num_samples=optional_count("num_samples", num_samples, where, least=0, most=_INT64) or 0,
    )


# -- puts --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Put:
    """A put, ready to be sent."""

    header: pb.PutSamplesHeader
    write: RowWrite
    sample_ids: list[str]
    tags: list[dict[str, Tag]] | None

    @classmethod
    def of(
        cls,
        header: pb.PutSamplesHeader,
        columns: list[WireColumn],
        lengths: list[int] | None = None,
        tags: list[dict[str, Tag]] | None = None,
    ) -> Put:
        """The header says which rows. lengths: the tokens of each."""
        sample_ids = list(header.sample_ids)
        n_rows = 1 if header.shared else len(sample_ids)
        write = RowWrite("PutSamples", header, columns, header.partition_id, n_rows, lengths)
        return cls(header, write, sample_ids, tags)

    def digest(self, *others: object) -> bytes:
        """Identifies what the put asks for, its values included, and the others, to compare a repetition with it."""
        asked = pb.PutSamplesHeader()
        asked.CopyFrom(self.header)
        for name in ("request_id", "caller", "read_on"):
            asked.ClearField(name)
        found = blake2b(repr(others).encode() + asked.SerializeToString(deterministic=True), digest_size=16)
        for column in self.write.columns:
            for piece in column.pieces():
                found.update(piece)
        return found.digest()

    def receipt(self, response: pb.PutSamplesResponse) -> KVBatchMeta:
        """The meta of the rows that were put."""
        header, ids = self.header, self.sample_ids
        of_certain_rows = header.claim_id or header.reservation_id
        outcomes = None if of_certain_rows else outcomes_of(response.outcomes, len(ids))
        of_rows = (ids, self.write.columns, self.write.lengths, self.tags)
        return receipt_of(header.partition_id, *of_rows, response.generations, outcomes)


def receipt_of(
    partition_id: str,
    sample_ids: list[str],
    columns: Sequence[WireColumn],
    sequence_lengths: list[int] | None,
    tags: list[dict[str, Tag]] | None,
    generations: bytes,
    outcomes: list[PutOutcome] | None,
) -> KVBatchMeta:
    """The meta of rows that were put."""
    return KVBatchMeta(
        partition_id=partition_id,
        task_name=None,
        sample_ids=sample_ids,
        fields=[column.name for column in columns],
        sequence_lengths=sequence_lengths,
        tags=tags,
        generations=generations_of(generations, len(sample_ids)),
        outcomes=outcomes,
    )


def outcomes_of(of_rows: bytes, n_rows: int) -> list[PutOutcome]:
    return [_OUTCOMES[number] for number in of_rows] if of_rows else [_OUTCOMES[0]] * n_rows


def put_request(
    where: str,
    partition_id: str,
    sample_ids: Sequence[str],
    fields: Fields | None,
    caller: str,
    *,
    tags: Sequence[Mapping[str, GivenTag]] | None = None,
    sequence_lengths: Sequence[int] | None = None,
    generations: Sequence[int] | None = None,
    append: bool = False,
    only_if: Where | None = None,
    once: Sequence[str] = (),
    read_on: str = "",
    create_only: bool = False,
    existing_only: bool = False,
    request_id: str | None = None,
) -> Put:
    """A put of rows. where: the beginning of every error message, such as "put_samples into 'p'". append: the columns
    are added to the end of the rows' values. request_id: the caller's name for it; None for a new one.
    """
    given_partition: object = partition_id
    if isinstance(sample_ids, str) and isinstance(given_partition, (list, tuple)):
        raise UnsupportedTypeError(f"{where}: the sample ids come first, then the partition")
    ids = checked_names("sample id", sample_ids, where)
    given = checked_lengths(sequence_lengths, ids, where)
    named = checked_generations(generations, ids, where)
    columns = wire_columns(fields, ids, where)
    if append:
        columns = [column.as_jagged(len(ids)) for column in columns]
    lengths, row_tags = carried_lengths(fields, given, ids, where), checked_tags(tags, ids, where)
    header = pb.PutSamplesHeader(
        request_id=new_request_id() if request_id is None else checked_name("request id", request_id, where),
        partition_id=checked_name("partition id", partition_id, where),
        sample_ids=ids,
        columns=[column_message(column) for column in columns],
        row_tags=packed_tags(row_tags, ids, where),
        sequence_lengths=b"" if lengths is None else int64_bytes(lengths),
        generations=b"" if named is None else int64_bytes(named),
        caller=caller,
        append=append,
        only_if=filter_message(only_if, where),
        once=checked_names("field name", once, where),
        read_on=checked_name("node id", read_on, where),
        create_only=checked_flag("create_only", create_only, where),
        existing_only=existing_only,
    )
    put = Put.of(header, columns, lengths, row_tags)
    if request_id is not None:
        header.request_digest = put.digest()
    return put


def shared_put_request(where: str, partition_id: str, fields: Fields, caller: str) -> Put:
    """A put of one row that every row of a reserved group gets."""
    columns = wire_columns(fields, None, where)
    header = pb.PutSamplesHeader(
        request_id=new_request_id(),
        partition_id=partition_id,
        columns=[column_message(column) for column in columns],
        shared=True,
        caller=caller,
    )
    return Put.of(header, columns)


def wire_columns(fields: Fields | None, sample_ids: Sequence[str] | None, where: str) -> list[WireColumn]:
    """The columns of fields, a row for each of the samples (None: one row of a group). Raises UnsupportedTypeError or
    InvalidArgumentError.
    """
    if fields is None:
        return []
    if not isinstance(fields, (TensorDictBase, Mapping)):
        raise UnsupportedTypeError(f"{where}: fields must be a TensorDict or a mapping, got {type(fields).__name__}")
    checked_names("field name", fields.keys(), where)
    with blame_caller(where):
        return encode_columns(fields, 1 if sample_ids is None else len(sample_ids), sample_ids)


def checked_tags(
    tags: Sequence[Mapping[str, GivenTag]] | None, sample_ids: Sequence[str], where: str
) -> list[dict[str, Tag]] | None:
    if tags is None:
        return None
    if isinstance(tags, (Mapping, str)) or not isinstance(tags, Iterable):
        raise UnsupportedTypeError(
            f"{where}: tags must be a list with one mapping for each of {len(sample_ids)} samples, got "
            f"{type(tags).__name__}; for the same tags on all rows give [tags] * {len(sample_ids)}"
        )
    rows = list(tags)
    if len(rows) != len(sample_ids):
        raise InvalidArgumentError(
            f"{where}: tags for {len(rows)} rows, but the call names {len(sample_ids)} samples",
            reason="ROW_COUNT_MISMATCH",
        )
    return [_plain_tags(f"row {row} (sample {sample_ids[row]!r})", mapping, where) for row, mapping in enumerate(rows)]


def _plain_tags(name: str, tags: Mapping[str, GivenTag], where: str) -> dict[str, Tag]:
    if not isinstance(tags, Mapping):
        raise UnsupportedTypeError(f"{where}: the tags of {name} must be a mapping, got {type(tags).__name__}")
    plain = {}
    items: ItemsView[object, object] = tags.items()  # callers may pass what the annotations exclude
    for key, value in items:
        if isinstance(value, np.generic) or (isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim == 0):
            value = value.item()
        if not isinstance(key, str) or not (value is None or isinstance(value, (bool, int, float, str))):
            raise UnsupportedTypeError(
                f"{where}: tag {key!r} of {name} is {type(value).__name__}; a tag must be a str with a value None, "
                "bool, int, float or str, or a NumPy scalar or 0-d tensor of these"
            )
        if isinstance(value, int) and not -_INT64 - 1 <= value <= _INT64:
            limits = "an int of a tag has at most 64 bits, -2**63 to 2**63 - 1; give a float or a str"
            raise InvalidArgumentError(f"{where}: tag {key!r} of {name} is out of range: {limits}")
        plain[key] = value
    return plain


def packed_tags(tags: Sequence[Mapping[str, Tag]] | None, sample_ids: Sequence[str], where: str) -> list[bytes]:
    return [_packed(mapping, sample_ids[row], where) for row, mapping in enumerate(tags or ())]


def _packed(tags: Mapping[str, Tag], sample_id: str, where: str) -> bytes:
    try:
        packed: bytes = msgpack.packb(tags) if tags else b""
    except ValueError as error:  # text without UTF-8 form
        raise InvalidArgumentError(f"{where}: tags of sample {sample_id!r} cannot be packed: {error}") from None
    return packed


# -- reads and clears --------------------------------------------------------------------------------------------------


def read_request(
    verb: str,
    partition_id: str,
    sample_ids: Sequence[str],
    select_fields: Sequence[str],
    generations: Sequence[int] | None = None,
    token_range: TokenRange | None = None,
    token_ranges: Sequence[TokenRange] | None = None,
) -> pb.ReadColumnsRequest:
    where = f"{verb} from {partition_id!r}"
    ids = checked_names("sample id", sample_ids, where)
    names = checked_names("field name", select_fields, where)
    if not names:
        raise InvalidArgumentError(f"{where}: select_fields is empty; name the fields to read")
    if not ids:
        raise InvalidArgumentError(f"{where}: sample_ids is empty; name the samples to read")
    named = checked_generations(generations, ids, where)
    bounds = _token_bounds(token_range, token_ranges, ids, where)
    return pb.ReadColumnsRequest(
        partition_id=checked_name("partition id", partition_id, where),
        sample_ids=ids,
        fields=names,
        generations=b"" if named is None else int64_bytes(named),
        token_starts=int64_bytes([start for start, _ in bounds]),
        token_ends=int64_bytes([end for _, end in bounds]),
    )


def list_request(
    partition_id: str,
    task_name: str | None,
    states: Sequence[str] | None,
    where: Where | None,
    page_size: int,
    page: int | None,
) -> pb.ListSamplesRequest:
    call = f"list_samples of {partition_id!r}"
    return pb.ListSamplesRequest(
        partition_id=checked_name("partition id", partition_id, call),
        task=checked_name("task name", task_name or "", call),
        states=checked_names("state", states or (), call),
        page_size=checked_count("page_size", page_size, call, least=1, most=_UINT32),
        page_token=checked_count("page", page or 0, call, least=0, most=_INT64),
        where=filter_message(where, call),
    )


def _token_bounds(
    token_range: TokenRange | None, token_ranges: Sequence[TokenRange] | None, ids: Sequence[str], where: str
) -> list[tuple[int, int]]:
    """Start and end for all rows, or for each; none for whole rows."""
    if token_range is not None and token_ranges is not None:
        raise InvalidArgumentError(f"{where}: give token_range for all rows or token_ranges for each, not both")
    if token_ranges is None:
        return [] if token_range is None else [_token_bound("token_range", token_range, where)]
    if not isinstance(token_ranges, Collection):
        raise UnsupportedTypeError(f"{where}: token_ranges must be a list of (start, end), got {token_ranges!r}")
    if len(token_ranges) != len(ids):
        message = f"{where}: token_ranges for {len(token_ranges)} rows, but the call names {len(ids)} samples"
        raise InvalidArgumentError(message, reason="ROW_COUNT_MISMATCH")
    named = zip(token_ranges, ids, strict=True)
    return [_token_bound(f"the token range of sample {sample_id!r}", one, where) for one, sample_id in named]


def _token_bound(what: str, given: TokenRange, where: str) -> tuple[int, int]:
    try:
        start, end = given
    except (TypeError, ValueError):
        raise UnsupportedTypeError(f"{where}: {what} must be (start, end), got {given!r}") from None
    for which, bound in (("start", start), ("end", end)):
        if isinstance(bound, int) and bound < 0:
            text = f"{where}: the {which} of {what} must be at least 0, got {bound}; it cannot count from a row's end"
            raise InvalidArgumentError(text)
    first = checked_count(f"the start of {what}", start, where, least=0, most=_INT64)
    last = _INT64 if end is None else checked_count(f"the end of {what}", end, where, least=first, most=_INT64)
    return first, last


def clear_request(
    partition_id: str, sample_ids: Sequence[str] | None, generations: Sequence[int] | None, where: Where | None
) -> pb.ClearSamplesRequest:
    """sample_ids None: all rows of the partition."""
    call = f"clear_samples in {partition_id!r}"
    ids = None if sample_ids is None else checked_names("sample id", sample_ids, call)
    named = None if ids == [] else checked_generations(generations, ids or (), call)
    return pb.ClearSamplesRequest(
        request_id=new_request_id(),
        partition_id=checked_name("partition id", partition_id, call),
        sample_ids=ids or (),
        whole_partition=ids is None,
        generations=b"" if named is None else int64_bytes(named),
        where=filter_message(where, call),
    )

"""Reads and writes of whole batches: the calls that trainers and rollout workers make most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dataplane_client._common.arguments import blame_caller
from dataplane_client._common.tracebacks import short_traceback
from dataplane_client._requests.first_write import FirstWrite
from dataplane_client._requests.requests import GivenTag, TokenRange
from dataplane_client._values.codec import Fields, pack_jagged_fields, with_padded_rows
from dataplane_client._values.columns_layout import Layout
from dataplane_client._verbs._sync.client import DataPlaneClient
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.errors import UnsupportedTypeError
from dataplane_client.records.meta import KVBatchMeta, checked_meta


@short_traceback
def read_columns(
    client: DataPlaneClient,
    meta: KVBatchMeta,
    select_fields: Sequence[str],
    *,
    layout: Layout = "padded",
    pad_value_dict: Mapping[str, int | float] | None = None,
    pad_to_seqlen: int = 0,
    device: torch.device | str = "cpu",
    token_range: TokenRange | None = None,
    token_ranges: Sequence[TokenRange] | None = None,
    timeout_s: float | None = None,
) -> BatchedDataDict[Any]:
    """Read fields of a meta's rows as a batch; see the client's method of this name."""
    _check_client(client, "read_columns(client, meta, select_fields)")
    return client.read_columns(
        meta,
        select_fields,
        layout=layout,
        pad_value_dict=pad_value_dict,
        pad_to_seqlen=pad_to_seqlen,
        device=device,
        token_range=token_range,
        token_ranges=token_ranges,
        timeout_s=timeout_s,
    )


@short_traceback
def write_columns(
    client: DataPlaneClient,
    meta: KVBatchMeta,
    fields: Mapping[str, object],
    *,
    timeout_s: float | None = None,
) -> None:
    """Write columns of a meta's rows: one row for each of its ids, in its order. No fields: does nothing.

    fields: tensors, arrays and lists, as in put_samples. Those of shape (N, max(sequence_lengths), ...), and wider ones
    of per-token fields, are stored jagged, by the meta's lengths (images of that height, too, which lose their last
    lines: write those with put_samples); others as they are. Errors as put_samples, and NotFoundError for a row that
    was cleared since (ReplacedError if it was put again).
    """
    _check_client(client, "write_columns(client, meta, fields)")
    checked_meta(meta, "write_columns")
    if not fields:
        return
    with blame_caller(f"write_columns into {meta.partition_id!r}"):
        if meta.sequence_lengths is None:
            packed: Fields = pack_jagged_fields(dict(fields), lengths=None)
        else:
            packed = with_padded_rows(fields, torch.tensor(meta.sequence_lengths, dtype=torch.int64), None)
    client.put_samples(
        meta.sample_ids,
        meta.partition_id,
        packed,
        sequence_lengths=meta.sequence_lengths,
        generations=meta.generations,
        timeout_s=timeout_s,
    )


@short_traceback
def kv_first_write(
    batch: Mapping[str, object],
    *,
    sample_ids: Sequence[str],
    dp_client: DataPlaneClient,
    partition_id: str,
    extra_info: Mapping[str, object] | None = None,
    task_name: str = "train",
    pad_to_multiple: int = 1,
    tags: Sequence[Mapping[str, GivenTag]] | None = None,
    timeout_s: float | None = None,
) -> KVBatchMeta:
    """Put a finished rollout batch: the rows' first fields, lengths and tags in one atomic put.

    batch: right-padded tensors, arrays and lists with one row for each id, as in put_samples. It must hold
    `input_lengths` (N,), the tokens of each row, and `sample_mask` (N,). Tensors (N, S, ...) are stored jagged if S is
    the longest row or that rounded up to pad_to_multiple. That goes by the shape alone: images whose height is S lose
    their last lines, so put those with put_samples. The returned meta names task_name, all fields, the lengths and the
    tags. Its extra_info holds the caller's, and the width to which every rank should pad
    (`global_forward_pad_seqlen`).

    Raises ValueError for a missing field, and for a number of ids or tags that does not match the batch; errors also as
    put_samples.
    """
    _check_client(dp_client, "kv_first_write(..., dp_client=)")
    write = FirstWrite(batch, sample_ids, pad_to_multiple, task_name, {} if extra_info is None else extra_info)
    meta = dp_client.put_samples(
        write.sample_ids, partition_id, write.fields, tags, sequence_lengths=write.lengths, timeout_s=timeout_s
    )
    return write.receipt(meta)


def _check_client(client: object, call: str) -> None:
    if not isinstance(client, DataPlaneClient):
        wanted, got = DataPlaneClient.__name__, type(client).__name__
        raise UnsupportedTypeError(f"{call}: the client must be of the class {wanted}, got {got}")

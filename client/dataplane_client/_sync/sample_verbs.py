"""Verbs about samples by their ids: put, read, clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from dataplane_client._arguments import checked_generations, checked_name, checked_names, one_or_more
from dataplane_client._device_batch import STAGED, batch_on_device
from dataplane_client._layouts import int64_bytes
from dataplane_client._padded_batch import PaddedBatch
from dataplane_client._placement import Destination
from dataplane_client._puts import put_of
from dataplane_client._requests import COPIES, VIEWS, Fields, jagged_batch, new_request_id, tensors
from dataplane_client._sync.transport import Transport
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.codec import materialize
from dataplane_client.columns_layout import Layout
from dataplane_client.descriptions import SampleDescription, sample_description
from dataplane_client.errors import InvalidArgumentError
from dataplane_client.meta import KVBatchMeta, Tag
from rl_dataplane.v1 import data_plane_pb2 as pb


class SampleVerbs:
    """Part of the client."""

    _transport: Transport

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Fields | None = None,
        tags: Sequence[Mapping[str, Tag]] | None = None,
        *,
        sequence_lengths: Sequence[int] | None = None,
        generations: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Write columns and tags of rows, all at once or not at all.

        Rows that do not exist are created; fields that a row has are replaced; others stay; tags are merged. fields: a
        TensorDict (or mapping) with one row for each id: dense tensors (N, ...), torch.jagged nested tensors ragged in
        dim 1, object leaves of what msgpack carries. sequence_lengths: tokens of each row, for the metas of later
        claims; not needed where a per-token field says it. generations: those of a meta, to write to its very rows:
        then none is created, and ReplacedError is raised for an id that was cleared and put again.

        Blocks while the server's memory has no room, then raises OutOfSpaceError. Raises InvalidArgumentError for rows
        that do not fit the field or the ids, UnsupportedTypeError for values that do not travel, NotFoundError for an
        unknown partition, and PreconditionError for a row of a reserved group, which only its holder may put.
        """
        where = f"put_samples into {partition_id!r}"
        put = put_of(
            where,
            partition_id,
            sample_ids,
            fields,
            self._transport.options.caller,
            tags=tags,
            sequence_lengths=sequence_lengths,
            generations=generations,
        )
        return put.receipt(self._transport.write("PutSamples", put.header, put.columns, timeout_s))

    def get_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        select_fields: Sequence[str],
        *,
        timeout_s: float | None = None,
    ) -> TensorDict:
        """Read fields of rows, in the order of the ids; batch size [N], on the CPU.

        A field's kind is the field's, not the rows': jagged fields come as torch.jagged nested tensors even where all
        rows have one length. Raises NotFoundError (a KeyError) for a missing sample or a field it has not produced,
        InvalidArgumentError for an empty selection or a field that is not declared.
        """
        request = self._read_request(sample_ids, partition_id, select_fields, "get_samples")
        return tensors(self._transport.read(request, COPIES, timeout_s), len(request.sample_ids))

    def get_data(
        self, meta: KVBatchMeta, select_fields: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> TensorDict:
        """Read the rows of a meta: the selected fields, else the meta's own. Never "all": ValueError without either.

        Errors as get_samples, and ReplacedError (a KeyError) for a row that was cleared and put again since.
        """
        names = select_fields if select_fields is not None else meta.fields
        if not names:
            raise InvalidArgumentError(
                f"get_data from {meta.partition_id!r}: neither select_fields nor meta.fields names a field"
            )
        request = self._meta_request(meta, names, "get_data")
        return tensors(self._transport.read(request, COPIES, timeout_s), len(request.sample_ids))

    def read_columns(
        self,
        meta: KVBatchMeta,
        select_fields: Sequence[str],
        *,
        layout: Layout = "padded",
        pad_value_dict: Mapping[str, int | float] | None = None,
        pad_to_seqlen: int = 0,
        device: torch.device | str = "cpu",
        timeout_s: float | None = None,
    ) -> BatchedDataDict[Any]:
        """Read fields of a meta's rows as a batch. Errors as get_data.

        layout "padded": ragged fields (N, longest row or pad_to_seqlen tokens where that is more, ...), filled up with
        the field's entry of pad_value_dict (0 where it has none; ValueError where its dtype cannot hold it).

        layout "jagged": they stay torch.jagged nested tensors. Where memory is shared with the server and the rows
        adjoin there in this order (as those of one put do), nothing is copied: the tensors are views of the server's
        memory, at the cost of one call whatever their size. The rows stay as they were read as long as a view lives,
        and their bytes count against the server's budget; writing to a view changes that view only.

        device: where tensors are wanted. On a CUDA device ragged values arrive through pinned memory, are padded there,
        and may still be on their way on the current stream when the call returns.
        """
        request = self._meta_request(meta, select_fields, "read_columns")
        n_rows = len(request.sample_ids)
        if torch.device(device).type != "cpu":
            staged = self._transport.read(request, STAGED, timeout_s)
            return batch_on_device(staged, n_rows, torch.device(device), layout, pad_value_dict or {}, pad_to_seqlen)
        if layout == "jagged" and pad_to_seqlen <= 0:
            return jagged_batch(self._transport.read(request, VIEWS, timeout_s), n_rows)
        if layout != "padded":
            columns = self._transport.read(request, VIEWS, timeout_s)
            return materialize(tensors(columns, n_rows), layout, pad_value_dict, pad_to_seqlen)
        padded = PaddedBatch(pad_value_dict or {}, pad_to_seqlen)
        return padded.batch(self._transport.read(request, Destination(padded.place), timeout_s), n_rows)

    @staticmethod
    def _read_request(
        sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str], verb: str
    ) -> pb.ReadColumnsRequest:
        where = f"{verb} from {partition_id!r}"
        ids = checked_names("sample id", sample_ids, where)
        names = one_or_more("field name", select_fields, where)
        if not names:
            raise InvalidArgumentError(f"{where}: select_fields is empty; name the fields to read")
        if not ids:
            raise InvalidArgumentError(f"{where}: no sample ids")
        partition_id = checked_name("partition id", partition_id, where)
        return pb.ReadColumnsRequest(partition_id=partition_id, sample_ids=ids, fields=names)

    def _meta_request(self, meta: KVBatchMeta, select_fields: Sequence[str], verb: str) -> pb.ReadColumnsRequest:
        request = self._read_request(meta.sample_ids, meta.partition_id, select_fields, verb)
        if meta.generations is not None:
            request.generations = int64_bytes(meta.generations)
        return request

    def clear_samples(
        self,
        sample_ids: Sequence[str] | None,
        partition_id: str,
        *,
        generations: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Remove rows, claimed or not (None: all of the partition); how many there were. Unknown ids are fine.

        generations: those of a meta, to remove its very rows: an id that was cleared and put again since stays.
        """
        where = f"clear_samples in {partition_id!r}"
        ids = None if sample_ids is None else checked_names("sample id", sample_ids, where)
        if ids is not None and not ids:
            return 0
        named = checked_generations(generations, ids or (), where)
        request = pb.ClearSamplesRequest(
            request_id=new_request_id(),
            partition_id=checked_name("partition id", partition_id, where),
            sample_ids=ids or (),
            whole_partition=ids is None,
            generations=b"" if named is None else int64_bytes(named),
        )
        return int((self._transport.unary("ClearSamples", request, timeout_s)).cleared_rows)

    def sample(self, partition_id: str, sample_id: str, *, timeout_s: float | None = None) -> SampleDescription:
        """Tell the story of a sample: what it holds, where it stands with every task, and what happened to it as far as
        the server remembers. Also of a sample that is gone. Raises NotFoundError for an unknown partition.
        """
        where = f"sample {sample_id!r} of {partition_id!r}"
        request = pb.GetSampleRequest(
            partition_id=checked_name("partition id", partition_id, where),
            sample_id=checked_name("sample id", sample_id, where),
        )
        return sample_description(self._transport.unary("GetSample", request, timeout_s))

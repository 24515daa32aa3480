"""Verbs about samples: put, read and clear them by their ids, and draw some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from dataplane_client._common.arguments import checked_choice, checked_count, checked_mapping, checked_name
from dataplane_client._common.tracebacks import short_tracebacks
from dataplane_client._memory.placement import Destination
from dataplane_client._memory.read_batches import (
    COPIES,
    VIEWS,
    DeviceBatch,
    PaddedBatch,
    checked_device,
    in_layout,
    jagged_batch,
    to_tensors,
)
from dataplane_client._requests.claim_requests import DrawStrategy, draw_request
from dataplane_client._requests.requests import GivenTag, TokenRange, clear_request, put_request, read_request
from dataplane_client._values.codec import Fields
from dataplane_client._values.columns_layout import Layout, TensorLayout
from dataplane_client._verbs._sync.batching import Batching
from dataplane_client._verbs._sync.row_writes import write_rows
from dataplane_client._verbs._sync.transport import Transport
from dataplane_client.batched_data_dict import BatchedDataDict, materialize
from dataplane_client.errors import InvalidArgumentError
from dataplane_client.records.descriptions import SampleDescription, sample_description
from dataplane_client.records.filters import Where
from dataplane_client.records.grants import SampledRows, decode_drawn
from dataplane_client.records.meta import KVBatchMeta, checked_meta
from rl_dataplane.v1 import data_plane_pb2 as pb

_MAX_BATCHED_ROWS, _MAX_BATCHED_BYTES = 1 << 16, 1 << 30
_MAX_LENGTH = (1 << 31) - 1


@short_tracebacks
class SampleVerbs:
    """Part of the client."""

    _transport: Transport

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Fields | None = None,
        tags: Sequence[Mapping[str, GivenTag]] | None = None,
        *,
        sequence_lengths: Sequence[int] | None = None,
        generations: Sequence[int] | None = None,
        only_if: Where | None = None,
        create_only: bool = False,
        once: Sequence[str] = (),
        read_on: str = "",
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Write columns and tags of rows, atomically.

        Creates rows that do not exist; replaces the given fields, keeps the others; merges tags. fields: a TensorDict
        or mapping with one row for each id. A column is one of:

        - a tensor or an array of numbers (N, ...): dense;
        - a nested tensor, ragged in dim 1: jagged;
        - a list of numbers, NumPy scalars or 0-d tensors: dense, (N,). Python's int and float become int64 and torch's
          default type (float32);
        - a list of tensors, arrays, or lists of numbers, each (length, ...): jagged, also if all have one length.
          Tensors and arrays that differ in a later dimension, such as images of different widths, are objects;
        - a list of anything else, an array of text or of dtype object, a NonTensorStack: objects. Values come back
          equal and of the same type: None, bool, int, float, str, bytes; lists, tuples and dicts of values, with str or
          int keys; NumPy scalars and arrays of numbers or text; tensors;
        - a list of nothing but empty lists: what the field holds, objects or rows without entries. It costs one more
          call, and is refused if nothing was put into the field yet.

        A tuple of numbers counts as a list of numbers. One row that is no number, str, None, array or list of numbers
        makes every row of its list an object. Without such a row, numbers and lists of numbers beside rows of another
        kind are refused, such as [1, None].

        A rectangle for a per-token field may be padded. It is cut to the lengths that the call carries:
        sequence_lengths (tokens of each row, also for the metas of later claims), or the field `input_lengths` (N,)
        beside it. Without them it is refused; see pack_per_token_field. Cutting costs two more calls the
        first time, unless this client has registered the partition.

        tags: one mapping for each id, with values None, bool, int of 64 bits, float, str, or NumPy scalars or 0-d
        tensors of these. generations: those of a meta, to write to exactly its rows: no row is created, and
        ReplacedError is raised for an id that was cleared and put again. only_if: a filter that every row must fit,
        when the put begins and when it takes effect, such as "state == 'new'" with tags=[{"state": "taken"}]: of
        several callers one puts, and the others get ConditionFailedError, as for a row that does not exist.
        create_only: put nothing, and raise PreconditionError (reason SAMPLE_EXISTS), if one of the rows exists.

        once: those of the fields whose values are stored once, such as images that many rows have: a value equals one
        of the field that was put with once as well and that a row of the partition has, so the row gets that one. All
        values travel; equal ones take space until the put is complete. Not for per-token fields. read_on: in a cluster,
        the id of the Ray node whose processes will read the rows: it fetches their values right after the put.
        request_id: a name for this put, at most 64 bytes. A repetition with the same name within ten minutes, also from
        another process, changes nothing and gets the first answer; another put is refused (PreconditionError, reason
        REQUEST_ID_USED), also one of other values.

        Returns the meta of the rows. Its sequence_lengths are those that the call carries, otherwise None, also for
        per-token columns: only the server knows which fields are per-token. Metas of claims and listings have them. Its
        outcomes show which rows are new, which existed, and which of these a task has consumed: that task does not get
        them again, unless they are cleared before the put, or reset.

        Blocks while the server's memory is full, then raises OutOfSpaceError. Raises InvalidArgumentError for rows that
        do not fit the field or the ids and for values out of range, such as the int 2**64 in an object,
        UnsupportedTypeError for unsupported types, NotFoundError for an unknown partition, and PreconditionError for a
        row of a reserved group, which only the group's holder may put.
        """
        where = f"put_samples into {partition_id!r}"
        put = put_request(
            where,
            partition_id,
            sample_ids,
            fields,
            self._transport.options.caller,
            tags=tags,
            sequence_lengths=sequence_lengths,
            generations=generations,
            only_if=only_if,
            once=once,
            read_on=read_on,
            create_only=create_only,
            request_id=request_id,
        )
        return put.receipt(write_rows(self._transport, put.write, timeout_s))

    def batching(self, *, max_rows: int = 256, max_bytes: int = 4 << 20) -> Batching:
        """An object that gathers puts: those of threads or tasks that put at the same time, and those that a caller
        makes one after the other with `put_later`. They reach the server in fewer calls, of at most max_rows rows and
        max_bytes of values each (a put of more is a call of its own). Enter it with `with`.

        Each put keeps what put_samples promises: it takes effect whole or not at all, has its own deadline, meta and
        refusal, and is acknowledged by the server before its caller is. Only puts of one partition whose columns are
        alike travel together. Metrics, traces and observers see calls, not puts.
        """
        where = "batching()"
        rows = checked_count("max_rows", max_rows, where, least=1, most=_MAX_BATCHED_ROWS)
        size_bytes = checked_count("max_bytes", max_bytes, where, least=1, most=_MAX_BATCHED_BYTES)
        return Batching(self._transport, rows, size_bytes)

    def append_tokens(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Fields,
        *,
        tags: Sequence[Mapping[str, GivenTag]] | None = None,
        generations: Sequence[int] | None = None,
        create: bool = False,
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Add entries to the end of rows' per-token fields, atomically, as their tokens are generated. Only the new
        entries travel.

        fields: a column for every per-token field that the rows hold, with one row of new entries for each id: lists as
        in put_samples, nested tensors, or dense (N, k, ...) for k entries each; (N,) for one each. Afterwards these
        fields have one length. A row without a value gets the entries as its value.

        create: create rows that do not exist, as put_samples does; for the first entries of a row. Otherwise such a row
        is refused (NotFoundError, nothing is appended): it was cleared, and only the end of it would be put.
        To hide rows until they are complete, reserve their group and use its append_tokens.

        For a moment the server's memory holds a row's old and new bytes; blocks while there is no space. Readers see
        the old values or the new ones. Raises AppendConflictError, with nothing appended, if another call changes
        per-token values of a row at the same time; InvalidArgumentError for a field that is not per-token and for
        lengths that would differ; and the errors of put_samples, whose arguments the others are.
        """
        where, caller = f"append_tokens in {partition_id!r}", self._transport.options.caller
        rows = (where, partition_id, sample_ids, fields, caller)
        put = put_request(*rows, tags=tags, generations=generations, append=True, existing_only=not create)
        return put.receipt(write_rows(self._transport, put.write, timeout_s))

    def get_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        select_fields: Sequence[str],
        *,
        token_range: TokenRange | None = None,
        token_ranges: Sequence[TokenRange] | None = None,
        layout: TensorLayout = "jagged",
        timeout_s: float | None = None,
    ) -> TensorDict:
        """Read fields of rows, in the order of the ids; batch size [N], on the CPU.

        token_range: of per-token fields read only the tokens from start to end, exclusive, such as the part of a
        context-parallel rank; None for the end of the row. Bounds beyond a row are cut to it. No other bytes travel.
        Fields that are not per-token are read whole. token_ranges: one range for each row.

        Jagged fields are torch.jagged nested tensors even if all rows read have one length; with layout "auto" they are
        then dense. Raises NotFoundError (a KeyError) for a missing sample or a field that it does not hold,
        InvalidArgumentError for an empty selection or an undeclared field.
        """
        ranges = (token_range, token_ranges)
        request = read_request("get_samples", partition_id, sample_ids, select_fields, None, *ranges)
        return self._read_tensors(request, layout, timeout_s)

    def _read_tensors(
        self, request: pb.ReadColumnsRequest, layout: TensorLayout, timeout_s: float | None
    ) -> TensorDict:
        checked_choice("layout", layout, TensorLayout, f"read from {request.partition_id!r}")
        columns = self._transport.read(request, COPIES, timeout_s)
        return to_tensors(in_layout(columns, layout), len(request.sample_ids))

    def get_data(
        self,
        meta: KVBatchMeta,
        select_fields: Sequence[str] | None = None,
        *,
        token_range: TokenRange | None = None,
        token_ranges: Sequence[TokenRange] | None = None,
        layout: TensorLayout = "jagged",
        timeout_s: float | None = None,
    ) -> TensorDict:
        """Read the rows of a meta: the selected fields, or the meta's own. Raises ValueError if neither names a field.

        token_range, token_ranges, layout: as in get_samples.

        Errors as get_samples, and ReplacedError (a KeyError) for a row that was cleared and put again since.
        """
        checked_meta(meta, "get_data")
        names = meta.fields if select_fields is None else select_fields
        if not names:
            raise InvalidArgumentError(
                f"get_data from {meta.partition_id!r}: neither select_fields nor meta.fields names a field"
            )
        ranges = (token_range, token_ranges)
        request = read_request("get_data", meta.partition_id, meta.sample_ids, names, meta.generations, *ranges)
        return self._read_tensors(request, layout, timeout_s)

    def read_columns(
        self,
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
        """Read fields of a meta's rows as a batch. Errors as get_data.

        layout "padded": ragged fields are (N, max(longest row, pad_to_seqlen), ...), filled up with the field's entry
        of pad_value_dict (0 by default; ValueError if its dtype cannot hold it). A name in it that is neither in
        select_fields nor in meta.fields is an InvalidArgumentError: a misspelt one would pad with 0.

        layout "jagged": ragged fields are torch.jagged nested tensors. If memory is shared with the server and the rows
        adjoin there in this order (as those of one put do), nothing is copied: the tensors are views of the server's
        memory, at the cost of one call whatever their size. As long as a view lives, the rows stay as they were read
        and their bytes count against the server's budget. Writing to a view changes that view only. A fork copies what
        the process views. While the views of 512 reads live, further reads copy.

        layout "auto": as "jagged", but a ragged field of which all rows read have one length is dense, (N, length,
        ...).

        token_range, token_ranges: as in get_samples; per-token fields are then ragged, and padded to the longest range.

        device: where the tensors go. To a CUDA device all values travel in two copies through pinned memory, one of the
        ragged fields and one of the dense ones, and are padded there; unpadded fields are views of what was copied.
        Copies may still be under way on the current stream when the call returns. Raises PreconditionError for a device
        that this process cannot use.
        """
        checked_meta(meta, "read_columns")
        rows = (meta.partition_id, meta.sample_ids, select_fields, meta.generations)
        request = read_request("read_columns", *rows, token_range, token_ranges)
        n_rows, where = len(request.sample_ids), f"read_columns from {meta.partition_id!r}"
        checked_choice("layout", layout, Layout, where)
        pad_values = checked_mapping("pad_value_dict", pad_value_dict or {}, where)
        checked_count("pad_to_seqlen", pad_to_seqlen, where, least=0, most=_MAX_LENGTH)
        if unknown := sorted(set(pad_values).difference(request.fields, meta.fields or ())):
            raise InvalidArgumentError(
                f"{where}: pad_value_dict names {', '.join(map(repr, unknown))}, which neither select_fields "
                f"({', '.join(request.fields)}) nor meta.fields does"
            )
        if device != "cpu" and (on := checked_device(device, where)).type != "cpu":
            batch = DeviceBatch(on, layout, pad_values, pad_to_seqlen)
            return batch.of(self._transport.read(request, batch.destination, timeout_s), n_rows)
        if layout != "padded":
            columns = in_layout(self._transport.read(request, VIEWS, timeout_s), layout)
            if pad_to_seqlen <= 0:
                return jagged_batch(columns, n_rows)
            return materialize(to_tensors(columns, n_rows), layout, pad_values, pad_to_seqlen)
        padded = PaddedBatch(pad_values, pad_to_seqlen)
        return padded.batch(self._transport.read(request, Destination(padded.place), timeout_s), n_rows)

    def draw_samples(
        self,
        partition_id: str,
        required_fields: Sequence[str],
        batch_size: int,
        *,
        min_size: int | None = None,
        strategy: DrawStrategy = "uniform",
        priority_tag: str = "",
        priority_exponent: float = 1.0,
        where: Where | None = None,
        task_name: str | None = None,
        max_times_sampled: int | None = None,
        seed: int | None = None,
        timeout_s: float | None = None,
    ) -> SampledRows:
        """Draw rows without taking them, for off-policy training: no claim holds them, no task consumes them, and other
        calls may get the same rows. Read them as those of a claim; a row that is cleared meanwhile is missing then.

        Draws up to batch_size different rows that hold all required fields and that no reserved group hides, whatever
        tasks have done with them. Waits, at most timeout_s, while the draw would leave the band of the partition (see
        FlowPolicy), and for nothing else: raises TooFewRowsError if there are fewer than min_size (None: batch_size).
        The server looks at every row of the partition, about 0.05 s for a million. It serves no other call meanwhile.

        strategy: "uniform"; "prioritized": each row with a probability proportional to the number in its tag
        priority_tag, raised to the power priority_exponent (at least 0), where rows without a positive number are not
        drawn, and put_samples of tags changes priorities; "fifo", "lifo": the rows that arrived first, or last.

        where: only rows that fit a filter, such as "staleness <= 8 and age_s < 3600". task_name: only rows that are not
        beyond the staleness that this task allows (see set_policies). max_times_sampled: only rows that were drawn less
        often, by any call; None for no limit. seed: 0 to 2**64 - 1, where all chance comes from; None for a new one.

        Raises NotFoundError for an unknown partition or task, InvalidArgumentError for an undeclared field.
        """
        request = draw_request(
            partition_id,
            required_fields,
            batch_size,
            min_size=min_size,
            task_name=task_name,
            strategy=strategy,
            priority_tag=priority_tag,
            priority_exponent=priority_exponent,
            where=where,
            max_times_sampled=max_times_sampled,
            seed=seed,
        )
        return decode_drawn(self._transport.unary("DrawSamples", request, timeout_s, waits=True), request)

    def clear_samples(
        self,
        sample_ids: Sequence[str] | None,
        partition_id: str,
        *,
        generations: Sequence[int] | None = None,
        where: Where | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Remove rows, claimed or not (None: all rows of the partition). Returns how many there were. Ignores unknown
        ids.

        generations: those of a meta, to remove exactly its rows: an id that was cleared and put again since stays.
        where: only rows that fit a filter, such as "staleness > 4 or age_s > 3600".
        """
        request = clear_request(partition_id, sample_ids, generations, where)
        if not request.sample_ids and not request.whole_partition:
            return 0
        return int((self._transport.unary("ClearSamples", request, timeout_s)).cleared_rows)

    def sample(self, partition_id: str, sample_id: str, *, timeout_s: float | None = None) -> SampleDescription:
        """Describe a sample: its contents, its state for every task, and its history as far as the server keeps it. The
        sample may have been removed. Raises NotFoundError for an unknown partition.
        """
        where = f"sample {sample_id!r} of {partition_id!r}"
        request = pb.GetSampleRequest(
            partition_id=checked_name("partition id", partition_id, where),
            sample_id=checked_name("sample id", sample_id, where),
        )
        return sample_description(self._transport.unary("GetSample", request, timeout_s))

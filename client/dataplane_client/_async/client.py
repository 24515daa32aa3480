"""The client: the verbs of the data plane over tensors.

Every verb takes `timeout_s` (seconds; None: the client's default) and raises, within it, an error of
`dataplane_client.errors`. While the server cannot be reached calls are repeated until then. A client may be used by
several threads or tasks at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import torch
from tensordict import TensorDict

from dataplane_client._arguments import checked_lengths, checked_name, checked_names, one_or_more
from dataplane_client._async.claim import AsyncClaim
from dataplane_client._async.transport import AsyncTransport
from dataplane_client._device_batch import STAGED, batch_on_device
from dataplane_client._padded_batch import PaddedBatch
from dataplane_client._placement import Destination
from dataplane_client._requests import (
    COPIES,
    VIEWS,
    Fields,
    claim_request,
    claimed_meta,
    jagged_batch,
    new_request_id,
    put_header,
    register_request,
    row_tags,
    tensors,
    wire_columns,
)
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.codec import materialize
from dataplane_client.columns_layout import Layout
from dataplane_client.descriptions import PartitionDescription, ServerStatus, partition_description, server_status
from dataplane_client.errors import ClaimTimeoutError, InvalidArgumentError
from dataplane_client.meta import KVBatchMeta, Tag
from dataplane_client.options import ClientOptions
from rl_dataplane.v1 import data_plane_pb2 as pb


async def connect(target: str, **options: float | str) -> AsyncDataPlaneClient:
    """Connect to a server at `unix:///path` or `host:port` and wait until it answers.

    options: the settings of ClientOptions by name. Blocks for at most connect_timeout_s while the server is not there
    yet, then raises UnavailableError; ValueError for a malformed address or setting.
    """
    settings = ClientOptions(**options)  # type: ignore[arg-type]  # a wrong value is refused by name in __post_init__
    client = AsyncDataPlaneClient(AsyncTransport(target, settings))
    try:
        await client.server_status(timeout_s=settings.connect_timeout_s)
    except BaseException:
        await client.close()
        raise
    return client


class AsyncDataPlaneClient:
    """A client of one server; made by `connect`. A context manager that closes it at the end."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        state = "closed" if self._transport.closed else "open"
        return f"<{type(self).__name__} {self._transport.target} {state}>"

    async def __aenter__(self) -> AsyncDataPlaneClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def transport(self) -> Literal["shm", "grpc"]:
        """How values travel now: through memory that the server shares with this host, or over gRPC."""
        return self._transport.name

    @property
    def target(self) -> str:
        """The server's address."""
        return self._transport.target

    async def close(self) -> None:
        """Close the connection; closing twice is fine. Open claims stay open on the server."""
        await self._transport.close()

    # -- partitions ----------------------------------------------------------------------------------------------------

    async def register_partition(
        self,
        partition_id: str,
        fields: Sequence[str],
        num_samples: int,
        consumer_tasks: Sequence[str],
        grpo_group_size: int | None = None,
        enums: Mapping[str, Sequence[str]] | None = None,
        *,
        per_token_fields: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> PartitionDescription:
        """Create a partition or replace its definition.

        fields: every field that its rows may have; a put of another is refused. per_token_fields: those of them with
        one entry for each token, which must have one length within a row. num_samples: how many rows the producer
        announces, for check_consumption_status; not a limit. grpo_group_size and enums (names for integer codes, by
        field) are kept for readers.

        Registering again keeps the rows, resets the cursors of all tasks and voids open claims. Raises
        PreconditionError when it would drop a field in which rows hold values.
        """
        request = register_request(
            partition_id, fields, num_samples, consumer_tasks, grpo_group_size, enums or {}, per_token_fields
        )
        response = await self._transport.unary("RegisterPartition", request, timeout_s)
        return partition_description(response.partition)

    async def drop_partition(self, partition_id: str, *, timeout_s: float | None = None) -> int:
        """Remove a partition with its rows, claims and definition; how many rows went. One that is not there is
        fine.
        """
        request = pb.DropPartitionRequest(
            request_id=new_request_id(), partition_id=checked_name("partition id", partition_id, "drop_partition")
        )
        return int((await self._transport.unary("DropPartition", request, timeout_s)).dropped_rows)

    async def partition(self, partition_id: str, *, timeout_s: float | None = None) -> PartitionDescription:
        """Describe a partition. Raises NotFoundError."""
        request = pb.GetPartitionRequest(partition_id=checked_name("partition id", partition_id, "partition"))
        return partition_description((await self._transport.unary("GetPartition", request, timeout_s)).partition)

    async def partitions(self, *, timeout_s: float | None = None) -> list[PartitionDescription]:
        """Describe all partitions, by id."""
        response = await self._transport.unary("ListPartitions", pb.ListPartitionsRequest(), timeout_s)
        return [partition_description(message) for message in response.partitions]

    async def server_status(self, *, timeout_s: float | None = None) -> ServerStatus:
        """Describe the server."""
        return server_status(await self._transport.unary("GetServerStatus", pb.GetServerStatusRequest(), timeout_s))

    # -- put and read --------------------------------------------------------------------------------------------------

    async def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Fields | None = None,
        tags: Sequence[Mapping[str, Tag]] | None = None,
        *,
        sequence_lengths: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> KVBatchMeta:
        """Write columns and tags of rows, all at once or not at all.

        Rows that do not exist are created; fields that a row has are replaced; others stay; tags are merged.
        fields: a TensorDict (or mapping) with one row for each id: dense tensors (N, ...), torch.jagged nested tensors
        ragged in dim 1, object leaves of what msgpack carries. sequence_lengths: tokens of each row, for the metas of
        later claims; not needed where a per-token field says it.

        Blocks while the server's memory has no room, then raises OutOfSpaceError. Raises InvalidArgumentError for rows
        that do not fit the field or the ids, UnsupportedTypeError for values that do not travel, and NotFoundError for
        an unknown partition.
        """
        where = f"put_samples into {partition_id!r}"
        ids = checked_names("sample id", sample_ids, where)
        lengths = checked_lengths(sequence_lengths, ids, where)
        columns = wire_columns(fields, len(ids), where)
        header = put_header(partition_id, ids, columns, row_tags(tags, len(ids), where), lengths)
        await self._transport.write("PutSamples", header, columns, timeout_s)
        return KVBatchMeta(
            partition_id=partition_id,
            task_name=None,
            sample_ids=ids,
            fields=[column.name for column in columns],
            sequence_lengths=lengths,
            tags=None if tags is None else [dict(mapping) for mapping in tags],
        )

    async def get_samples(
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
        return tensors(await self._transport.read(request, COPIES, timeout_s), len(request.sample_ids))

    async def get_data(
        self, meta: KVBatchMeta, select_fields: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> TensorDict:
        """Read the rows of a meta: the selected fields, else the meta's own. Never "all": ValueError without either."""
        names = select_fields if select_fields is not None else meta.fields
        if not names:
            raise InvalidArgumentError(
                f"get_data from {meta.partition_id!r}: neither select_fields nor meta.fields names a field"
            )
        return await self.get_samples(meta.sample_ids, meta.partition_id, names, timeout_s=timeout_s)

    async def read_columns(
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
        """Read fields of a meta's rows as a batch. Errors as get_samples.

        layout "padded": ragged fields (N, longest row or pad_to_seqlen tokens where that is more, ...), filled up with
        the field's entry of pad_value_dict (0 where it has none; ValueError where its dtype cannot hold it).

        layout "jagged": they stay torch.jagged nested tensors. Where memory is shared with the server and the rows
        adjoin there in this order (as those of one put do), nothing is copied: the tensors are views of the server's
        memory, at the cost of one call whatever their size. The rows stay as they were read as long as a view lives,
        and their bytes count against the server's budget; writing to a view changes that view only.

        device: where tensors are wanted. On a CUDA device ragged values arrive through pinned memory, are padded there,
        and may still be on their way on the current stream when the call returns.
        """
        request = self._read_request(meta.sample_ids, meta.partition_id, select_fields, "read_columns")
        n_rows = len(request.sample_ids)
        if torch.device(device).type != "cpu":
            staged = await self._transport.read(request, STAGED, timeout_s)
            return batch_on_device(staged, n_rows, torch.device(device), layout, pad_value_dict or {}, pad_to_seqlen)
        if layout == "jagged" and pad_to_seqlen <= 0:
            return jagged_batch(await self._transport.read(request, VIEWS, timeout_s), n_rows)
        if layout != "padded":
            columns = await self._transport.read(request, VIEWS, timeout_s)
            return materialize(tensors(columns, n_rows), layout, pad_value_dict, pad_to_seqlen)
        padded = PaddedBatch(pad_value_dict or {}, pad_to_seqlen)
        return padded.batch(await self._transport.read(request, Destination(padded.place), timeout_s), n_rows)

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

    async def clear_samples(
        self, sample_ids: Sequence[str] | None, partition_id: str, *, timeout_s: float | None = None
    ) -> int:
        """Remove rows, claimed or not (None: all of the partition); how many there were. Unknown ids are fine."""
        where = f"clear_samples in {partition_id!r}"
        ids = None if sample_ids is None else checked_names("sample id", sample_ids, where)
        if ids is not None and not ids:
            return 0
        request = pb.ClearSamplesRequest(
            request_id=new_request_id(),
            partition_id=checked_name("partition id", partition_id, where),
            sample_ids=ids or (),
            whole_partition=ids is None,
        )
        return int((await self._transport.unary("ClearSamples", request, timeout_s)).cleared_rows)

    # -- claims --------------------------------------------------------------------------------------------------------

    async def claim(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        *,
        min_size: int | None = None,
        timeout_s: float = 60.0,
    ) -> AsyncClaim:
        """Take rows for a task until they are committed or released.

        Rows in which all required fields are produced and which the task has not taken, in the order in which they
        became ready. Blocks on the server until min_size rows are there (None: batch_size) and takes up to batch_size.
        Raises ClaimTimeoutError with nothing taken when timeout_s passes first, NotFoundError for an unknown partition
        or task, InvalidArgumentError for an undeclared field or sizes that make no sense.
        """
        mode = pb.CLAIM_MODE_ACKNOWLEDGED
        request = claim_request(partition_id, task_name, required_fields, batch_size, min_size, mode)
        response = await self._transport.unary("ClaimSamples", request, timeout_s, waits=True)
        meta = claimed_meta(response, partition_id, task_name, required_fields, None)
        return AsyncClaim(self._transport, response.claim_id, meta)

    async def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        dp_rank: int | None = None,
        blocking: bool = True,
        timeout_s: float = 60.0,
    ) -> KVBatchMeta:
        """Take rows for a task; delivery is consumption. What the caller loses stays lost: `claim` does not have that.

        Waits as `claim` does for exactly batch_size rows. Not blocking: a meta without rows when they are not there.
        dp_rank is handed on in the meta's extra_info; which rows are taken does not depend on it.
        """
        mode = pb.CLAIM_MODE_CONSUME
        request = claim_request(partition_id, task_name, required_fields, batch_size, None, mode)
        try:
            if blocking:
                response = await self._transport.unary("ClaimSamples", request, timeout_s, waits=True)
            else:
                response = await self._transport.unary("ClaimSamples", request, None)
        except ClaimTimeoutError:
            if blocking:
                raise
            response = pb.ClaimSamplesResponse()
        return claimed_meta(response, partition_id, task_name, required_fields, dp_rank)

    async def check_consumption_status(
        self, partition_id: str, task_names: Sequence[str], *, timeout_s: float | None = None
    ) -> bool:
        """Whether the announced num_samples rows have been put and each of the tasks has consumed all that are
        there.
        """
        where = f"check_consumption_status of {partition_id!r}"
        request = pb.GetConsumptionStatusRequest(
            partition_id=checked_name("partition id", partition_id, where),
            tasks=one_or_more("task name", task_names, where),
        )
        return bool((await self._transport.unary("GetConsumptionStatus", request, timeout_s)).consumed)

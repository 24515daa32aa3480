"""The client: the verbs of the data plane over tensors.

Every verb takes `timeout_s` (seconds; None: the client's default) and raises, within it, an error of
`dataplane_client.errors`. While the server cannot be reached calls are repeated until then. A client may be used by
several threads or tasks at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

from rl_dataplane.v1 import data_plane_pb2 as pb
from tensordict import TensorDict

from dataplane_client._layouts import chunks, put_frames
from dataplane_client._requests import (
    Fields,
    checked_ids,
    claimed_meta,
    new_request_id,
    put_header,
    row_tags,
    tensors,
    wire_columns,
)
from dataplane_client._sync.claim import Claim
from dataplane_client._sync.transport import Transport
from dataplane_client.descriptions import PartitionDescription, ServerStatus, partition_description, server_status
from dataplane_client.errors import ClaimTimeoutError, InvalidArgumentError, UnsupportedTypeError
from dataplane_client.meta import KVBatchMeta, Tag
from dataplane_client.options import ClientOptions


def connect(target: str, **options: float) -> DataPlaneClient:
    """Connect to a server at `unix:///path` or `host:port` and wait until it answers.

    options: the settings of ClientOptions by name. Blocks for at most connect_timeout_s while the server is not there
    yet, then raises UnavailableError; ValueError for a malformed address or setting.
    """
    settings = ClientOptions(**options)  # type: ignore[arg-type]  # a wrong value is refused by name in __post_init__
    client = DataPlaneClient(Transport(target, settings))
    try:
        client.server_status(timeout_s=settings.connect_timeout_s)
    except BaseException:
        client.close()
        raise
    return client


class DataPlaneClient:
    """A client of one server; made by `connect`. A context manager that closes it at the end."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        state = "closed" if self._transport.closed else "open"
        return f"<{type(self).__name__} {self._transport.target} {state}>"

    def __enter__(self) -> DataPlaneClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def target(self) -> str:
        """The server's address."""
        return self._transport.target

    def close(self) -> None:
        """Close the connection; closing twice is fine. Open claims stay open on the server."""
        self._transport.close()

    # -- partitions ----------------------------------------------------------------------------------------------------

    def register_partition(
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
        for what, names in (
            ("fields", fields),
            ("consumer_tasks", consumer_tasks),
            ("per_token_fields", per_token_fields),
        ):
            if isinstance(names, str):
                raise UnsupportedTypeError(f"register_partition: {what} is a sequence of str, got the str {names!r}")
        request = pb.RegisterPartitionRequest(
            request_id=new_request_id(),
            partition_id=partition_id,
            fields=fields,
            tasks=consumer_tasks,
            num_samples=num_samples,
            grpo_group_size=grpo_group_size,
            enums={field: pb.EnumNames(names=names) for field, names in (enums or {}).items()},
            per_token_fields=per_token_fields,
        )
        response = self._transport.unary("RegisterPartition", request, timeout_s)
        return partition_description(response.partition)

    def drop_partition(self, partition_id: str, *, timeout_s: float | None = None) -> int:
        """Remove a partition with its rows, claims and definition; how many rows went. One that is not there is
        fine.
        """
        request = pb.DropPartitionRequest(request_id=new_request_id(), partition_id=partition_id)
        return int((self._transport.unary("DropPartition", request, timeout_s)).dropped_rows)

    def partition(self, partition_id: str, *, timeout_s: float | None = None) -> PartitionDescription:
        """Describe a partition. Raises NotFoundError."""
        request = pb.GetPartitionRequest(partition_id=partition_id)
        return partition_description((self._transport.unary("GetPartition", request, timeout_s)).partition)

    def partitions(self, *, timeout_s: float | None = None) -> list[PartitionDescription]:
        """Describe all partitions, by id."""
        response = self._transport.unary("ListPartitions", pb.ListPartitionsRequest(), timeout_s)
        return [partition_description(message) for message in response.partitions]

    def server_status(self, *, timeout_s: float | None = None) -> ServerStatus:
        """Describe the server."""
        return server_status(self._transport.unary("GetServerStatus", pb.GetServerStatusRequest(), timeout_s))

    # -- put and read --------------------------------------------------------------------------------------------------

    def put_samples(
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
        ids = checked_ids(sample_ids, where)
        columns = wire_columns(fields, len(ids), where)
        header = put_header(partition_id, ids, columns, row_tags(tags, len(ids), where), sequence_lengths)
        chunk_bytes = self._transport.options.chunk_bytes
        self._transport.send("PutSamples", header, lambda: put_frames(header, chunks(columns, chunk_bytes)), timeout_s)
        return KVBatchMeta(
            partition_id=partition_id,
            task_name=None,
            sample_ids=ids,
            fields=[column.name for column in columns],
            sequence_lengths=None if sequence_lengths is None else [int(length) for length in sequence_lengths],
            tags=None if tags is None else [dict(mapping) for mapping in tags],
        )

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
        where = f"get_samples from {partition_id!r}"
        ids = checked_ids(sample_ids, where)
        names = [select_fields] if isinstance(select_fields, str) else list(select_fields)
        if not names:
            raise InvalidArgumentError(f"{where}: select_fields is empty; name the fields to read")
        if not ids:
            raise InvalidArgumentError(f"{where}: no sample ids")
        request = pb.ReadColumnsRequest(partition_id=partition_id, sample_ids=ids, fields=names)
        return tensors(self._transport.read(request, timeout_s), len(ids))

    def get_data(
        self, meta: KVBatchMeta, select_fields: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> TensorDict:
        """Read the rows of a meta: the selected fields, else the meta's own. Never "all": ValueError without either."""
        names = select_fields if select_fields is not None else meta.fields
        if not names:
            raise InvalidArgumentError(
                f"get_data from {meta.partition_id!r}: neither select_fields nor meta.fields names a field"
            )
        return self.get_samples(meta.sample_ids, meta.partition_id, names, timeout_s=timeout_s)

    def clear_samples(
        self, sample_ids: Sequence[str] | None, partition_id: str, *, timeout_s: float | None = None
    ) -> int:
        """Remove rows, claimed or not (None: all of the partition); how many there were. Unknown ids are fine."""
        ids = None if sample_ids is None else checked_ids(sample_ids, f"clear_samples in {partition_id!r}")
        if ids is not None and not ids:
            return 0
        request = pb.ClearSamplesRequest(
            request_id=new_request_id(), partition_id=partition_id, sample_ids=ids or (), whole_partition=ids is None
        )
        return int((self._transport.unary("ClearSamples", request, timeout_s)).cleared_rows)

    # -- claims --------------------------------------------------------------------------------------------------------

    def claim(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        *,
        min_size: int | None = None,
        timeout_s: float = 60.0,
    ) -> Claim:
        """Take rows for a task until they are committed or released.

        Rows in which all required fields are produced and which the task has not taken, in the order in which they
        became ready. Blocks on the server until min_size rows are there (None: batch_size) and takes up to batch_size.
        Raises ClaimTimeoutError with nothing taken when timeout_s passes first, NotFoundError for an unknown partition
        or task, InvalidArgumentError for an undeclared field or sizes that make no sense.
        """
        request = _claim_request(partition_id, task_name, required_fields, batch_size, pb.CLAIM_MODE_ACKNOWLEDGED)
        if min_size is not None:
            request.min_size = min_size
        response = self._transport.unary("ClaimSamples", request, timeout_s, waits=True)
        meta = claimed_meta(response, partition_id, task_name, required_fields, None)
        return Claim(self._transport, response.claim_id, meta)

    def claim_meta(
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
        request = _claim_request(partition_id, task_name, required_fields, batch_size, pb.CLAIM_MODE_CONSUME)
        try:
            if blocking:
                response = self._transport.unary("ClaimSamples", request, timeout_s, waits=True)
            else:
                response = self._transport.unary("ClaimSamples", request, None)
        except ClaimTimeoutError:
            if blocking:
                raise
            response = pb.ClaimSamplesResponse()
        return claimed_meta(response, partition_id, task_name, required_fields, dp_rank)

    def check_consumption_status(
        self, partition_id: str, task_names: Sequence[str], *, timeout_s: float | None = None
    ) -> bool:
        """Whether the announced num_samples rows have been put and each of the tasks has consumed all that are
        there.
        """
        names = [task_names] if isinstance(task_names, str) else list(task_names)
        request = pb.GetConsumptionStatusRequest(partition_id=partition_id, tasks=names)
        return bool((self._transport.unary("GetConsumptionStatus", request, timeout_s)).consumed)


def _claim_request(
    partition_id: str, task_name: str, required_fields: Sequence[str], batch_size: int, mode: pb.ClaimMode.ValueType
) -> pb.ClaimSamplesRequest:
    if batch_size < 1:
        raise InvalidArgumentError(f"a claim needs batch_size >= 1, got {batch_size}")
    return pb.ClaimSamplesRequest(
        request_id=new_request_id(),
        partition_id=partition_id,
        task=task_name,
        required_fields=[required_fields] if isinstance(required_fields, str) else list(required_fields),
        batch_size=batch_size,
        mode=mode,
    )

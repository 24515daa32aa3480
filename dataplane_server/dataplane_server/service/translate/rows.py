"""Messages to calls of the core, and answers to messages: partitions, writes, reads, clears.

Decides nothing that the core could decide. Claims and groups are in `claims`, samples in `samples`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgpack
import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from dataplane_server.core.calls.answers import (
    FieldInfo,
    PartitionInfo,
    PutResult,
    ReadColumn,
    ReadPlan,
    Registered,
    TaskInfo,
)
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import (
    BeginRead,
    ClearSamples,
    CommitClaim,
    ExtendPartition,
    PutSamples,
    RegisterPartition,
)
from dataplane_server.core.calls.values import Definition, Int64Array, Tags
from dataplane_server.durability.snapshot import Manifest
from dataplane_server.service.translate.filters import rows_that_fit
from dataplane_server.service.translate.policies import flow_message, policy_message
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.element_numbers import DTYPE_NUMBERS, DTYPES_BY_NUMBER, KIND_NUMBERS, KINDS_BY_NUMBER

MAX_TAGS_BYTES = 64 * 1024


# -- requests ----------------------------------------------------------------------------------------------------------


def register(request: pb.RegisterPartitionRequest) -> RegisterPartition:
    definition = Definition(
        partition_id=request.partition_id,
        fields=tuple(request.fields),
        tasks=tuple(request.tasks),
        num_samples=request.num_samples,
        per_token_fields=frozenset(request.per_token_fields),
        grpo_group_size=request.grpo_group_size if request.HasField("grpo_group_size") else None,
        enums={field: tuple(names.names) for field, names in request.enums.items()},
        max_deliveries=request.max_deliveries,
        open=request.open,
        clear_when_consumed=request.clear_when_consumed,
    )
    return RegisterPartition(request.request_id, definition, request.replace)


def extend(request: pb.ExtendPartitionRequest) -> ExtendPartition:
    return ExtendPartition(
        request.request_id,
        request.partition_id,
        tuple(request.fields),
        frozenset(request.per_token_fields),
        tuple(request.tasks),
        request.num_samples,
    )


def put(header: pb.PutSamplesHeader) -> PutSamples:
    return PutSamples(
        request_id=header.request_id,
        partition_id=header.partition_id,
        sample_ids=list(header.sample_ids),
        columns=[_column_spec(column) for column in header.columns],
        tags=_tags(header.row_tags) if header.row_tags else None,
        sequence_lengths=_int64s("sequence_lengths", header.sequence_lengths) if header.sequence_lengths else None,
        generations=_generations(header),
        claim_id=header.claim_id,
        reservation_id=header.reservation_id,
        shared=header.shared,
        caller=header.caller,
        add_to_group=header.add_to_group,
        append=header.append,
        only_if=rows_that_fit(header.only_if),
        once=tuple(header.once),
        digest=header.request_digest,
        create_only=header.create_only,
    )


def commit(header: pb.CommitClaimHeader) -> CommitClaim:
    return CommitClaim(header.request_id, header.claim_id, [_column_spec(column) for column in header.columns])


def _generations(request: pb.PutSamplesHeader | pb.ReadColumnsRequest | pb.ClearSamplesRequest) -> Int64Array | None:
    """The generations in a request; None if it has none."""
    return _int64s("generations", request.generations) if request.generations else None


def clear(request: pb.ClearSamplesRequest) -> ClearSamples:
    if request.whole_partition and request.sample_ids:
        raise Refusal(Reason.INVALID_REQUEST, "a clear must name samples or the whole partition, not both")
    sample_ids = None if request.whole_partition else list(request.sample_ids)
    generations, where = _generations(request), rows_that_fit(request.where)
    return ClearSamples(request.request_id, request.partition_id, sample_ids, generations, where)


def read(request: pb.ReadColumnsRequest) -> BeginRead:
    return BeginRead(
        partition_id=request.partition_id,
        sample_ids=list(request.sample_ids),
        fields=list(request.fields),
        generations=_generations(request),
        token_starts=_int64s("token_starts", request.token_starts) if request.token_starts else None,
        token_ends=_int64s("token_ends", request.token_ends) if request.token_ends else None,
        caller=request.caller,
    )


def seconds(duration: Duration) -> float:
    """A wait in seconds, never negative."""
    return max(0.0, duration.seconds + duration.nanos / 1e9)


def snapshot(manifest: Manifest) -> pb.Snapshot:
    taken = Timestamp()
    taken.FromNanoseconds(round(manifest.at * 1e9))
    return pb.Snapshot(
        name=manifest.name, taken=taken, rows=sum(manifest.rows.values()), values_bytes=manifest.values_bytes
    )


def duration(value_s: float) -> Duration:
    return Duration(seconds=int(value_s), nanos=int(value_s % 1 * 1e9))


def optional_duration(value_s: float | None) -> Duration | None:
    return None if value_s is None else duration(value_s)


def _column_spec(column: pb.Column) -> ColumnSpec:
    shape = Shape(
        kind=KINDS_BY_NUMBER.get(column.kind, "dense"),
        dtype=DTYPES_BY_NUMBER.get(column.data_type, ""),
        row_shape=tuple(column.row_shape),
    )
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
    except (ValueError, msgpack.UnpackException) as error:
        message = f"tags of row {row} are not a valid msgpack map: {error}"
        raise Refusal(Reason.INVALID_REQUEST, message, row=row) from None
    return tags


# -- responses ---------------------------------------------------------------------------------------------------------


def put_result(result: PutResult) -> pb.PutSamplesResponse:
    return pb.PutSamplesResponse(
        created_rows=result.created_rows,
        size_bytes=result.size_bytes,
        generations=int64_bytes(result.generations),
        abort_hint=result.abort_hint,
        outcomes=result.outcomes,
    )


def read_header(plan: ReadPlan) -> pb.ReadColumnsHeader:
    columns = [_column(column) for column in plan.columns]
    return pb.ReadColumnsHeader(columns=columns, sequence_lengths=int64_bytes(plan.sequence_lengths))


_OUTCOMES = {
    "created": pb.REGISTRATION_OUTCOME_CREATED,
    "unchanged": pb.REGISTRATION_OUTCOME_UNCHANGED,
    "extended": pb.REGISTRATION_OUTCOME_EXTENDED,
    "replaced": pb.REGISTRATION_OUTCOME_REPLACED,
}


def registered(answer: Registered) -> pb.RegisterPartitionResponse:
    return pb.RegisterPartitionResponse(partition=partition(answer.partition), outcome=_OUTCOMES[answer.outcome])


def partition(info: PartitionInfo) -> pb.Partition:
    what = info.definition
    return pb.Partition(
        partition_id=what.partition_id,
        fields=[_field_description(field) for field in info.fields],
        tasks=task_statuses(info.tasks),
        num_samples=what.num_samples,
        grpo_group_size=what.grpo_group_size,
        enums={field: pb.EnumNames(names=names) for field, names in what.enums.items()},
        rows=info.rows,
        size_bytes=info.size_bytes,
        rows_put_total=info.rows_put_total,
        rows_cleared_total=info.rows_cleared_total,
        max_deliveries=what.max_deliveries,
        removed_rows=info.removed_rows,
        open_groups=info.open_groups,
        oldest_row_age=optional_duration(info.oldest_row_age_s),
        newest_weight_version=info.newest_weight_version,
        written_bytes_total=info.written_bytes_total,
        deduplicated_bytes_total=info.deduplicated_bytes_total,
        read_bytes_total=info.read_bytes_total,
        read_rows_total=info.read_rows_total,
        open=what.open,
        clear_when_consumed=what.clear_when_consumed,
        closed=info.closed,
        weight_version=info.weight_version,
        flow=flow_message(info.flow),
        waiting_calls=info.waiting_calls,
        waits_because=info.waits_because,
    )


def task_statuses(infos: Iterable[TaskInfo]) -> list[pb.TaskStatus]:
    return [
        pb.TaskStatus(
            task=info.task,
            untaken_rows=info.untaken_rows,
            claimed_rows=info.claimed_rows,
            consumed_rows=info.consumed_rows,
            consumed_rows_total=info.consumed_rows_total,
            waiting_claims=info.waiting_claims,
            delayed_rows=info.delayed_rows,
            dead_rows=info.dead_rows,
            delivered_rows_total=info.delivered_rows_total,
            ended_deliveries=info.ended_deliveries,
            state_seconds=info.state_seconds,
            ready_rows=info.ready_rows,
            oldest_untaken_age=optional_duration(info.oldest_untaken_age_s),
            weight_version_lag=info.weight_version_lag,
            longest_wait=optional_duration(info.longest_wait_s),
            claims_total=info.claims_total,
            stale_rows=info.stale_rows,
            excluded_rows=info.excluded_rows,
            newest_step=info.newest_step,
            next_step=info.next_step,
            policy=policy_message(info.policy),
        )
        for info in infos
    ]


def _column(column: ReadColumn) -> pb.Column:
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

"""Messages to calls of the core, and answers to messages: partitions and their policies, writes, reads, clears."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from dataplane_server.core.calls.answers import (
    ConsumptionInfo,
    PartitionInfo,
    PutResult,
    ReadPlan,
    Registered,
    TaskInfo,
)
from dataplane_server.core.calls.policies import TaskPolicy, TaskPolicyOf
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import (
    BeginRead,
    ClearSamples,
    CommitClaim,
    ExtendPartition,
    PutSamples,
    RegisterPartition,
    SetPolicies,
    SetWeightVersion,
)
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.plane import DataPlane
from dataplane_server.durability.snapshot import Manifest
from dataplane_server.service.translate.forms import MAPPER, column_message, int64_bytes
from rl_dataplane.v1 import data_plane_pb2 as pb

# -- requests ----------------------------------------------------------------------------------------------------------

_definition = MAPPER.reader(Definition, pb.RegisterPartitionRequest, leave=("request_id", "replace"))
extend = MAPPER.reader(ExtendPartition, pb.ExtendPartitionRequest)
put = MAPPER.reader(
    PutSamples,
    pb.PutSamplesHeader,
    tags="row_tags",
    digest="request_digest",
    leave=("node", "read_on", "wait_timeout", "digests", "one_frame"),
)
commit = MAPPER.reader(CommitClaim, pb.CommitClaimHeader, leave=("node", "wait_timeout", "digests", "one_frame"))
read = MAPPER.reader(BeginRead, pb.ReadColumnsRequest, leave=("ticket",))
_clear = MAPPER.reader(
    ClearSamples,
    pb.ClearSamplesRequest,
    sample_ids=lambda request: None if request.whole_partition else list(request.sample_ids),
    leave=("whole_partition",),
)
set_version = MAPPER.reader(SetWeightVersion, pb.SetWeightVersionRequest)
_policy = MAPPER.reader(TaskPolicy, pb.TaskPolicy)


def _policies(request: pb.SetPoliciesRequest) -> tuple[TaskPolicyOf, ...]:
    return tuple([TaskPolicyOf(task, _policy(message)) for task, message in sorted(request.tasks.items())])


set_policies = MAPPER.reader(SetPolicies, pb.SetPoliciesRequest, tasks=_policies)


def register(request: pb.RegisterPartitionRequest) -> RegisterPartition:
    return RegisterPartition(request.request_id, _definition(request), request.replace)


def repeats(plane: DataPlane, request: pb.RegisterPartitionRequest) -> bool:
    """Whether the partition is registered as the request says. Refusal PARTITION_DIFFERS if the two contradict."""
    return not request.replace and plane.is_registered(_definition(request))


def clear(request: pb.ClearSamplesRequest) -> ClearSamples:
    if request.whole_partition and request.sample_ids:
        raise Refusal(Reason.INVALID_REQUEST, "a clear must name samples or the whole partition, not both")
    return _clear(request)


# -- responses ---------------------------------------------------------------------------------------------------------

MAPPER.writer(TaskInfo, pb.TaskStatus, leave=("recent",))
consumption = MAPPER.writer(ConsumptionInfo, pb.GetConsumptionStatusResponse)
partition = MAPPER.writer(
    PartitionInfo,
    pb.Partition,
    inline="definition",
    leave=("recent", "definition.fields", "definition.tasks", "definition.per_token_fields"),
)
registered = MAPPER.writer(Registered, pb.RegisterPartitionResponse)


def put_result(result: PutResult) -> pb.PutSamplesResponse:
    return pb.PutSamplesResponse(
        created_rows=result.created_rows,
        size_bytes=result.size_bytes,
        generations=int64_bytes(result.generations),
        abort_hint=result.abort_hint,
        outcomes=result.outcomes,
    )


def read_header(plan: ReadPlan) -> pb.ReadColumnsHeader:
    columns = [column_message(column) for column in plan.columns]
    digests = b"" if plan.digests is None else int64_bytes(plan.digests)
    return pb.ReadColumnsHeader(columns=columns, sequence_lengths=int64_bytes(plan.sequence_lengths), digests=digests)


def snapshot(manifest: Manifest) -> pb.Snapshot:
    taken = Timestamp()
    taken.FromNanoseconds(round(manifest.at * 1e9))
    return pb.Snapshot(
        name=manifest.name, taken=taken, rows=sum(manifest.rows.values()), values_bytes=manifest.values_bytes
    )

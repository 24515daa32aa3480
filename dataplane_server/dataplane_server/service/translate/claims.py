"""Messages to calls of the core, and answers to messages: claims, shards, releases, resets, reserved groups."""

from __future__ import annotations

from collections.abc import Iterable

from dataplane_server.core.calls.answers import DeadLetter, Grant, GroupPart, Reserved
from dataplane_server.core.calls.fingerprints import check_digest
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import (
    AbandonRequest,
    ClaimSamples,
    ClaimShard,
    FinishGroup,
    ReleaseClaim,
    ReserveGroup,
    ResetTask,
)
from dataplane_server.core.calls.values import Balance, BatchUnit
from dataplane_server.service.translate import filters, policies
from dataplane_server.service.translate.rows import int64_bytes, packed_tags, seconds
from rl_dataplane.v1 import data_plane_pb2 as pb

_BALANCE: dict[int, Balance] = {
    pb.SHARD_BALANCE_ROWS: "rows",
    pb.SHARD_BALANCE_TOKENS: "tokens",
    pb.SHARD_BALANCE_GROUPS: "groups",
}
_UNIT: dict[int, BatchUnit | None] = {
    pb.BATCH_UNIT_UNSPECIFIED: None,
    pb.BATCH_UNIT_ROWS: "rows",
    pb.BATCH_UNIT_GROUPS: "groups",
}


# -- requests ----------------------------------------------------------------------------------------------------------


def claim(request: pb.ClaimSamplesRequest) -> ClaimSamples:
    if request.mode not in (pb.CLAIM_MODE_ACKNOWLEDGED, pb.CLAIM_MODE_CONSUME):
        raise Refusal(Reason.INVALID_REQUEST, f"unknown claim mode: {request.mode}; it must be ACKNOWLEDGED or CONSUME")
    return ClaimSamples(
        request_id=request.request_id,
        partition_id=request.partition_id,
        task=request.task,
        required_fields=tuple(request.required_fields),
        batch_size=request.batch_size,
        min_size=request.min_size if request.HasField("min_size") else request.batch_size,
        consume=request.mode == pb.CLAIM_MODE_CONSUME,
        session_id=request.session_id,
        whole_groups=request.whole_groups,
        max_tokens=request.max_tokens,
        unit=_unit(request.unit),
        where=filters.rows_that_fit(request.where),
        order=policies.order(request.order),
        order_tag=request.order_tag,
    )


def shard(request: pb.ClaimShardRequest) -> ClaimShard:
    if request.balance not in _BALANCE:
        message = f"unknown shard balance: {request.balance}; it must be ROWS, TOKENS or GROUPS"
        raise Refusal(Reason.INVALID_REQUEST, message)
    return ClaimShard(
        request_id=request.request_id,
        partition_id=request.partition_id,
        task=request.task,
        step=request.step,
        dp_rank=request.dp_rank,
        dp_world=request.dp_world,
        required_fields=tuple(request.required_fields),
        batch_size=request.batch_size,
        min_size=request.min_size if request.HasField("min_size") else request.batch_size,
        balance=_BALANCE[request.balance],
        max_tokens=request.max_tokens,
        whole_groups=request.whole_groups,
        session_id=request.session_id,
        unit=_unit(request.unit),
        where=filters.rows_that_fit(request.where),
        order=policies.order(request.order),
        order_tag=request.order_tag,
        again=request.again,
    )


def _unit(number: int) -> BatchUnit | None:
    if number not in _UNIT:
        raise Refusal(Reason.INVALID_REQUEST, f"unknown batch unit: {number}; it must be ROWS or GROUPS")
    return _UNIT[number]


def release(request: pb.ReleaseClaimRequest) -> ReleaseClaim | AbandonRequest:
    if request.claim_id and request.claim_request_id:
        message = "a release must name claim_id or claim_request_id, not both"
        raise Refusal(Reason.INVALID_REQUEST, message)
    if request.claim_request_id:
        return AbandonRequest(request.request_id, request.claim_request_id)
    return ReleaseClaim(request.request_id, request.claim_id, seconds(request.delay), request.reason)


def reset(request: pb.ResetTaskRequest) -> ResetTask:
    if request.whole_task and request.sample_ids:
        raise Refusal(Reason.INVALID_REQUEST, "a reset must name samples or the whole task, not both")
    sample_ids = None if request.whole_task else list(request.sample_ids)
    return ResetTask(request.request_id, request.partition_id, request.task, sample_ids)


def reserve(request: pb.ReserveGroupRequest) -> ReserveGroup:
    return ReserveGroup(
        request_id=request.request_id,
        partition_id=request.partition_id,
        group_id=request.group_id,
        sample_ids=list(request.sample_ids),
        session_id=request.session_id,
        weight_version=request.weight_version if request.HasField("weight_version") else None,
    )


def finish_group(request: pb.FinishGroupRequest) -> FinishGroup:
    version = request.weight_version if request.HasField("weight_version") else None
    check_digest(request.request_digest)
    return FinishGroup(request.request_id, request.reservation_id, version, request.request_digest)


# -- responses ---------------------------------------------------------------------------------------------------------


def grant(value: Grant) -> pb.ClaimSamplesResponse:
    return pb.ClaimSamplesResponse(
        claim_id=value.claim_id,
        sample_ids=value.sample_ids,
        sequence_lengths=int64_bytes(value.sequence_lengths),
        row_tags=map(packed_tags, value.tags),
        generations=int64_bytes(value.generations),
        deliveries=int64_bytes(value.deliveries),
        groups=[_group(part) for part in value.groups],
        staleness=int64_bytes(value.staleness),
        committed=value.committed,
    )


def dead_letters(letters: Iterable[DeadLetter]) -> pb.ListDeadLettersResponse:
    return pb.ListDeadLettersResponse(
        dead_letters=[
            pb.DeadLetter(sample_id=letter.sample_id, deliveries=letter.deliveries, reason=letter.reason)
            for letter in letters
        ]
    )


def reserved(value: Reserved) -> pb.ReserveGroupResponse:
    return pb.ReserveGroupResponse(reservation_id=value.reservation_id, generations=int64_bytes(value.generations))


def _group(part: GroupPart) -> pb.ClaimedGroup:
    return pb.ClaimedGroup(
        group_id=part.group_id,
        rows=part.rows,
        start_weight_version=part.start_weight_version,
        end_weight_version=part.end_weight_version,
    )

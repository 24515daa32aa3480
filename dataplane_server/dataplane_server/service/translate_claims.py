"""Messages to values of the core and back: claims, shards and what becomes of them, reserved groups."""

from __future__ import annotations

from collections.abc import Iterable

import msgpack

from dataplane_server.core.calls import (
    Balance,
    ClaimRequest,
    DeadLetter,
    Grant,
    GroupPart,
    Reserve,
    Reserved,
    ShardRequest,
)
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.service.translate import int64_bytes
from rl_dataplane.v1 import data_plane_pb2 as pb

_BALANCE: dict[int, Balance] = {pb.SHARD_BALANCE_ROWS: "rows", pb.SHARD_BALANCE_TOKENS: "tokens"}


# -- requests ----------------------------------------------------------------------------------------------------------


def claim(request: pb.ClaimSamplesRequest) -> ClaimRequest:
    if request.mode not in (pb.CLAIM_MODE_ACKNOWLEDGED, pb.CLAIM_MODE_CONSUME):
        raise Refusal(Reason.INVALID_REQUEST, "a claim must say what delivery means (mode)")
    return ClaimRequest(
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
    )


def shard(request: pb.ClaimShardRequest) -> ShardRequest:
    if request.balance not in _BALANCE:
        raise Refusal(Reason.INVALID_REQUEST, "a claim of a shard must say how rows are split (balance)")
    return ShardRequest(
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
    )


def reset_selection(request: pb.ResetTaskRequest) -> list[str] | None:
    """The samples to give back; None for all."""
    if request.whole_task and request.sample_ids:
        raise Refusal(Reason.INVALID_REQUEST, "a reset names samples or the whole task, not both")
    return None if request.whole_task else list(request.sample_ids)


def reserve(request: pb.ReserveGroupRequest) -> Reserve:
    return Reserve(
        request_id=request.request_id,
        partition_id=request.partition_id,
        group_id=request.group_id,
        sample_ids=list(request.sample_ids),
        session_id=request.session_id,
        weight_version=request.weight_version if request.HasField("weight_version") else None,
    )


# -- responses ---------------------------------------------------------------------------------------------------------


def grant(value: Grant) -> pb.ClaimSamplesResponse:
    return pb.ClaimSamplesResponse(
        claim_id=value.claim_id,
        sample_ids=value.sample_ids,
        sequence_lengths=int64_bytes(value.sequence_lengths),
        row_tags=[msgpack.packb(tags) if tags else b"" for tags in value.tags],
        generations=int64_bytes(value.generations),
        deliveries=int64_bytes(value.deliveries),
        groups=[_group(part) for part in value.groups],
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

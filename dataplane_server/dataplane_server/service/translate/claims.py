"""Messages to calls of the core, and answers to messages: claims, shards, releases, resets, draws, reserved groups."""

from __future__ import annotations

from collections.abc import Iterable

from dataplane_server.core.calls.answers import DeadLetter, Drawn, Grant, GroupPart, Reserved
from dataplane_server.core.calls.fingerprints import check_digest
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import (
    AbandonRequest,
    AbortGroup,
    ClaimSamples,
    ClaimShard,
    DrawSamples,
    FinishGroup,
    ReleaseClaim,
    ReserveGroup,
    ResetTask,
)
from dataplane_server.service.messages.frames import MAX_MESSAGE_BYTES
from dataplane_server.service.translate.forms import MAPPER, int64_bytes, packed_tags
from rl_dataplane.v1 import data_plane_pb2 as pb

# -- requests ----------------------------------------------------------------------------------------------------------


def _min_size(request: pb.ClaimSamplesRequest | pb.ClaimShardRequest | pb.DrawSamplesRequest) -> int:
    """A request that names none wants all that it asks for."""
    return request.min_size if request.HasField("min_size") else request.batch_size


_claim = MAPPER.reader(
    ClaimSamples,
    pb.ClaimSamplesRequest,
    min_size=_min_size,
    consume=lambda request: request.mode == pb.CLAIM_MODE_CONSUME,
    leave=("mode", "node", "wait_timeout"),
)
shard = MAPPER.reader(ClaimShard, pb.ClaimShardRequest, min_size=_min_size, leave=("node", "wait_timeout"))
draw = MAPPER.reader(
    DrawSamples,
    pb.DrawSamplesRequest,
    min_size=_min_size,
    priority_exponent=lambda request: request.priority_exponent if request.HasField("priority_exponent") else 1.0,
    leave=("wait_timeout",),
)
_release = MAPPER.reader(ReleaseClaim, pb.ReleaseClaimRequest, leave=("claim_request_id",))
_reset = MAPPER.reader(
    ResetTask,
    pb.ResetTaskRequest,
    sample_ids=lambda request: None if request.whole_task else list(request.sample_ids),
    leave=("whole_task",),
)
reserve = MAPPER.reader(ReserveGroup, pb.ReserveGroupRequest, leave=("wait_timeout",))
abort_group = MAPPER.reader(AbortGroup, pb.AbortGroupRequest)
_finish_group = MAPPER.reader(FinishGroup, pb.FinishGroupRequest, digest="request_digest")


def claim(request: pb.ClaimSamplesRequest) -> ClaimSamples:
    if request.mode not in (pb.CLAIM_MODE_ACKNOWLEDGED, pb.CLAIM_MODE_CONSUME):
        raise Refusal(Reason.INVALID_REQUEST, f"unknown claim mode: {request.mode}; it must be ACKNOWLEDGED or CONSUME")
    return _claim(request)


def release(request: pb.ReleaseClaimRequest) -> ReleaseClaim | AbandonRequest:
    if request.claim_id and request.claim_request_id:
        message = "a release must name claim_id or claim_request_id, not both"
        raise Refusal(Reason.INVALID_REQUEST, message)
    if request.claim_request_id:
        return AbandonRequest(request.request_id, request.claim_request_id)
    return _release(request)


def reset(request: pb.ResetTaskRequest) -> ResetTask:
    if request.whole_task and request.sample_ids:
        raise Refusal(Reason.INVALID_REQUEST, "a reset must name samples or the whole task, not both")
    return _reset(request)


def finish_group(request: pb.FinishGroupRequest) -> FinishGroup:
    check_digest(request.request_digest)
    return _finish_group(request)


# -- responses ---------------------------------------------------------------------------------------------------------

reserved = MAPPER.writer(Reserved, pb.ReserveGroupResponse)
_group = MAPPER.writer(GroupPart, pb.ClaimedGroup)
_drawn = MAPPER.writer(Drawn, pb.DrawSamplesResponse, row_tags="tags", leave=("tag_bytes",))
_dead_letter = MAPPER.writer(DeadLetter, pb.DeadLetter)


def grant(value: Grant) -> pb.ClaimSamplesResponse:
    return pb.ClaimSamplesResponse(
        claim_id=value.claim_id,
        sample_ids=value.sample_ids,
        sequence_lengths=int64_bytes(value.sequence_lengths),
        row_tags=map(packed_tags, value.tags),
        generations=int64_bytes(value.generations),
        deliveries=int64_bytes(value.deliveries),
        groups=map(_group, value.groups),
        staleness=int64_bytes(value.staleness),
        committed=value.committed,
    )


def drawn(value: Drawn, partition_id: str) -> pb.DrawSamplesResponse:
    """Refusal LIMIT_REACHED if the response exceeds a message; the rows have been drawn then."""
    response = _drawn(value)
    if (size := response.ByteSize()) > MAX_MESSAGE_BYTES:
        message = (
            f"partition {partition_id!r}: ids and tags of the {len(value.sample_ids)} rows take {size} bytes, the "
            f"limit is {MAX_MESSAGE_BYTES}: draw fewer (batch_size)"
        )
        raise Refusal(Reason.LIMIT_REACHED, message, partition_id=partition_id)
    return response


def dead_letters(letters: Iterable[DeadLetter]) -> pb.ListDeadLettersResponse:
    return pb.ListDeadLettersResponse(dead_letters=map(_dead_letter, letters))

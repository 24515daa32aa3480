"""Messages to calls of the core, and answers to messages: draws."""

from __future__ import annotations

from dataplane_server.core.calls.answers import Drawn
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import DrawSamples
from dataplane_server.core.calls.values import DrawStrategy
from dataplane_server.service.messages.frames import MAX_MESSAGE_BYTES
from dataplane_server.service.translate.filters import rows_that_fit
from dataplane_server.service.translate.rows import int64_bytes, packed_tags
from rl_dataplane.v1 import data_plane_pb2 as pb

_STRATEGY: dict[int, DrawStrategy] = {
    pb.DRAW_STRATEGY_UNSPECIFIED: "uniform",
    pb.DRAW_STRATEGY_UNIFORM: "uniform",
    pb.DRAW_STRATEGY_PRIORITIZED: "prioritized",
    pb.DRAW_STRATEGY_FIFO: "fifo",
    pb.DRAW_STRATEGY_LIFO: "lifo",
}


def draw(request: pb.DrawSamplesRequest) -> DrawSamples:
    if request.strategy not in _STRATEGY:
        message = f"unknown draw strategy: {request.strategy}; it must be UNIFORM, PRIORITIZED, FIFO or LIFO"
        raise Refusal(Reason.INVALID_REQUEST, message)
    return DrawSamples(
        request_id=request.request_id,
        partition_id=request.partition_id,
        batch_size=request.batch_size,
        min_size=request.min_size if request.HasField("min_size") else request.batch_size,
        seed=request.seed,
        task=request.task,
        required_fields=tuple(request.required_fields),
        strategy=_STRATEGY[request.strategy],
        priority_tag=request.priority_tag,
        priority_exponent=request.priority_exponent if request.HasField("priority_exponent") else 1.0,
        where=rows_that_fit(request.where),
        max_times_sampled=request.max_times_sampled,
    )


def drawn(value: Drawn, partition_id: str) -> pb.DrawSamplesResponse:
    """Refusal LIMIT_REACHED if the response exceeds a message; the rows have been drawn then."""
    response = pb.DrawSamplesResponse(
        sample_ids=value.sample_ids,
        sequence_lengths=int64_bytes(value.sequence_lengths),
        row_tags=map(packed_tags, value.tags),
        generations=int64_bytes(value.generations),
        draws=int64_bytes(value.draws),
        probabilities=value.probabilities.astype("<f8", copy=False).tobytes(),
        staleness=int64_bytes(value.staleness),
    )
    if (size := response.ByteSize()) > MAX_MESSAGE_BYTES:
        message = (
            f"partition {partition_id!r}: ids and tags of the {len(value.sample_ids)} rows take {size} bytes, the "
            f"limit is {MAX_MESSAGE_BYTES}: draw fewer (batch_size)"
        )
        raise Refusal(Reason.LIMIT_REACHED, message, partition_id=partition_id)
    return response

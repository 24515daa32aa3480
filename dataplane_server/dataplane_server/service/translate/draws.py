"""Messages to calls of the core, and answers to messages: draws."""

from __future__ import annotations

from dataplane_server.core.calls.answers import Drawn
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import DrawSamples
from dataplane_server.service.messages.frames import MAX_MESSAGE_BYTES
from dataplane_server.service.translate.claims import min_size
from dataplane_server.service.translate.forms import MAPPER, int64_bytes, packed_tags
from rl_dataplane.v1 import data_plane_pb2 as pb

draw = MAPPER.reader(
    DrawSamples,
    pb.DrawSamplesRequest,
    min_size=min_size,
    priority_exponent=lambda request: request.priority_exponent if request.HasField("priority_exponent") else 1.0,
    leave=("wait_timeout",),
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

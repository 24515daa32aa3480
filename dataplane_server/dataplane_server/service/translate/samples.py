"""The state and history of a sample as a message."""

from __future__ import annotations

from dataplane_server.core.calls.answers import ResidentSample, SampleEvent, SampleHistory
from dataplane_server.service.translate.rows import duration, packed_tags
from rl_dataplane.v1 import data_plane_pb2 as pb


def history(value: SampleHistory, now: float) -> pb.GetSampleResponse:
    response = pb.GetSampleResponse() if value.resident is None else _resident(value.resident)
    response.events.extend(_event(event, now) for event in value.events)
    return response


def _resident(row: ResidentSample) -> pb.GetSampleResponse:
    return pb.GetSampleResponse(
        resident=True,
        generation=row.generation,
        sequence_length=row.sequence_length,
        fields=row.fields,
        tags=packed_tags(row.tags),
        group_id=row.group_id,
        hidden=row.hidden,
        tasks=[
            pb.SampleTask(task=task.task, state=task.state, deliveries=task.deliveries, claim_id=task.claim_id)
            for task in row.tasks
        ],
    )


def _event(event: SampleEvent, now: float) -> pb.SampleEvent:
    return pb.SampleEvent(
        age=duration(max(0.0, now - event.at)),
        what=event.what,
        who=event.who,
        task=event.task,
        claim_id=event.claim_id,
        fields=event.fields,
        reason=event.reason,
    )

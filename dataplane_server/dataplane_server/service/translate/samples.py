"""The state and history of a sample as a message."""

from __future__ import annotations

from dataplane_server.core.calls.answers import ResidentSample, SampleEvent, SampleHistory
from dataplane_server.service.translate.forms import MAPPER
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.records import duration

_resident = MAPPER.writer(ResidentSample, pb.GetSampleResponse, resident=lambda _: True, leave=("events",))
_event = MAPPER.writer(SampleEvent, pb.SampleEvent, leave=("age", "at"))


def history(value: SampleHistory, now: float) -> pb.GetSampleResponse:
    response = pb.GetSampleResponse() if value.resident is None else _resident(value.resident)
    for event in value.events:
        message = _event(event)
        message.age.CopyFrom(duration(max(0.0, now - event.at)))
        response.events.append(message)
    return response

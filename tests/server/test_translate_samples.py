"""The story of a sample as a message."""

from __future__ import annotations

import msgpack
from google.protobuf.duration_pb2 import Duration

from dataplane_server.core.calls.answers import ResidentSample, SampleEvent, SampleHistory, SampleTask
from dataplane_server.service import translate


def test_a_sample_that_is_there_is_described_in_full() -> None:
    tasks = (SampleTask("train", "claimed", 2, "c-7"), SampleTask("eval", "untaken", 0, ""))
    row = ResidentSample(5, -1, ("x", "y"), {"n": 1}, "g", True, tasks)
    message = translate.samples.history(SampleHistory(row, ()), 10.0)
    assert (message.resident, message.generation, message.sequence_length) == (True, 5, -1)
    assert (list(message.fields), msgpack.unpackb(message.tags)) == (["x", "y"], {"n": 1})
    assert (message.group_id, message.hidden) == ("g", True)
    assert [(task.task, task.state, task.deliveries, task.claim_id) for task in message.tasks] == [
        ("train", "claimed", 2, "c-7"),
        ("eval", "untaken", 0, ""),
    ]


def test_a_sample_that_is_gone_has_its_past_alone() -> None:
    events = (
        SampleEvent(7.5, "put", "me", fields=("x",)),
        SampleEvent(8.0, "released", "you", "train", "c-7", reason="bad tokens"),
    )
    message = translate.samples.history(SampleHistory(None, events), 10.0)
    assert not message.resident
    put, released = message.events
    assert (put.age, put.what, put.who, list(put.fields)) == (
        Duration(seconds=2, nanos=500_000_000),
        "put",
        "me",
        ["x"],
    )
    assert (released.age, released.what, released.task, released.claim_id, released.reason) == (
        Duration(seconds=2),
        "released",
        "train",
        "c-7",
        "bad tokens",
    )


def test_no_event_lies_in_the_future() -> None:
    message = translate.samples.history(SampleHistory(None, (SampleEvent(10.5, "put"),)), 10.0)
    assert message.events[0].age == Duration()

"""Observers are notified of each call in order, and their errors do not end calls.

White-box: calls that are repeated and fail as they are told to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dataplane_client import observe
from dataplane_client.errors import DataPlaneError, UnavailableError
from rl_dataplane.v1 import data_plane_pb2 as pb

Add = Callable[[observe.Observer], None]


class Recorder(observe.Observer):
    """Records its notifications."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def began(self, call: observe.Call) -> None:
        self.lines.append(("began", call.verb, call.target))

    def retried(self, call: observe.Call, error: DataPlaneError) -> None:
        self.lines.append(("retried", str(error)))

    def ended(self, call: observe.Call) -> None:
        self.lines.append(("ended", call.code, call.transport, call.seconds > 0))


class Faulty(observe.Observer):
    def ended(self, call: observe.Call) -> None:
        raise ZeroDivisionError


@pytest.fixture
def add() -> Iterator[Add]:
    """Add observers until the end of the test."""
    added: list[observe.Observer] = []

    def add(observer: observe.Observer) -> None:
        added.append(observer)
        observe.add(observer)

    yield add
    for observer in added:
        observe.remove(observer)


def make_a_call(*, retries: int = 0, fails: Exception | None = None) -> None:
    with observe.Call("ListPartitions", "127.0.0.1:1", pb.ListPartitionsRequest()) as call:
        for _ in range(retries):
            call.transport = "grpc"
            call.retried(UnavailableError("gone"))
        call.transport = "shm"
        if fails is not None:
            raise fails
        call.response = 7


def test_an_observer_is_notified_once_from_the_beginning_of_a_call_to_its_end_until_it_is_removed(add: Add) -> None:
    recorder, other = Recorder(), Recorder()
    for one in (recorder, other, recorder):
        add(one)
    make_a_call(retries=2)
    assert (
        other.lines
        == recorder.lines
        == [
            ("began", "ListPartitions", "127.0.0.1:1"),
            ("retried", "gone"),
            ("retried", "gone"),
            ("ended", "OK", "shm", True),
        ]
    )
    for _ in range(2):
        observe.remove(recorder)
    make_a_call(retries=1)
    assert (len(recorder.lines), len(other.lines)) == (4, 7)


@pytest.mark.parametrize("error", [UnavailableError("gone"), ZeroDivisionError()], ids=["ours", "another"])
def test_a_call_that_fails_ends_with_the_class_of_its_exception(add: Add, error: Exception) -> None:
    recorder = Recorder()
    add(recorder)
    with pytest.raises(type(error)) as caught:
        make_a_call(fails=error)
    assert caught.value is error
    assert recorder.lines[-1][1] == type(error).__name__


def test_an_observer_that_raises_is_removed_and_the_call_goes_on(add: Add, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    add(Faulty())
    add(recorder)
    with caplog.at_level(logging.ERROR, "dataplane_client"):
        make_a_call()
        make_a_call()
    assert caplog.messages == ["observer_failed observer=Faulty error=ZeroDivisionError()"]
    assert [line[0] for line in recorder.lines] == ["began", "ended"] * 2


IDS = ["a", "b", "c"]
GRANTED = pb.ClaimSamplesResponse(sample_ids=IDS)


@pytest.mark.parametrize(
    ("request_", "response", "attributes"),
    [
        (pb.GetServerStatusRequest(), pb.GetServerStatusResponse(), ("", "", None)),
        (pb.GetPartitionRequest(partition_id="p"), pb.GetPartitionResponse(), ("p", "", None)),
        (pb.PutSamplesHeader(partition_id="p", sample_ids=IDS), pb.PutSamplesResponse(), ("p", "", 3)),
        (pb.ReadColumnsRequest(partition_id="p", sample_ids=IDS), [], ("p", "", 3)),
        (pb.ClaimSamplesRequest(partition_id="p", task="t", batch_size=9), None, ("p", "t", None)),
        (pb.ClaimSamplesRequest(partition_id="p", task="t", batch_size=9), GRANTED, ("p", "t", 3)),
        (pb.ClaimShardRequest(partition_id="p", task="t"), pb.ClaimShardResponse(claim=GRANTED), ("p", "t", 3)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, tuple) else "",
)
def test_a_call_has_the_partition_task_and_rows_of_its_messages(
    add: Add, request_: Any, response: object, attributes: tuple[str, str, int | None]
) -> None:
    add(Recorder())
    with observe.Call("Verb", "127.0.0.1:1", request_) as call:
        call.response = response
    assert (call.partition, call.task, call.rows) == attributes

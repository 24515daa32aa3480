"""Streams of frames that break the contract: refused by name, and nothing of them stays."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from tests.integration.conftest import unchanged
from tests.integration.wire.conftest import refusal
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient
from rl_dataplane.v1 import data_plane_pb2 as pb

MIB = 1 << 20
_numbers = itertools.count()


def header(size_bytes: int = 12, **more: Any) -> pb.PutSamplesHeader:
    """A put of one row that holds size_bytes in field x."""
    column = pb.Column(name="x", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_UINT8, row_shape=[size_bytes])
    settings = {
        "request_id": f"request-{next(_numbers)}",
        "partition_id": "p",
        "sample_ids": ["s"],
        "columns": [column],
        **more,
    }
    return pb.PutSamplesHeader(**settings)


def frame(what: pb.PutSamplesHeader | None = None, chunk: tuple[int, bytes] | None = None) -> pb.PutSamplesRequest:
    request = pb.PutSamplesRequest(header=what)
    if chunk is not None:
        request.chunk.offset_bytes, request.chunk.data = chunk
    return request


@pytest.fixture
def registered(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["x", "y"], 0, ["train"])
    return client


BROKEN: dict[str, tuple[Callable[[], Sequence[pb.PutSamplesRequest]], str]] = {
    "no frame": (list, "first frame"),
    "no header": (lambda: [frame(chunk=(0, b"x" * 12))], "first frame"),
    "a header after the first chunk": (lambda: [frame(chunk=(0, b"x" * 4)), frame(header())], "first frame"),
    "a second header": (lambda: [frame(header(), (0, b"x" * 4)), frame(header(), (4, b"x" * 8))], "second header"),
    "a truncated end": (lambda: [frame(header(), (0, b"x" * 4)), frame(chunk=(4, b"x" * 4))], "after 8 of 12 bytes"),
    "a chunk too much": (lambda: [frame(header(), (0, b"x" * 12)), frame(chunk=(12, b"x"))], "more than the 12 bytes"),
    "values where none belong": (lambda: [frame(header(0), (0, b"x"))], "more than the 0 bytes"),
    "a gap": (lambda: [frame(header(), (0, b"x" * 4)), frame(chunk=(5, b"x" * 7))], "at byte 5 of the values"),
    "a chunk twice": (lambda: [frame(header(), (0, b"x" * 4)), frame(chunk=(0, b"x" * 4)), frame(chunk=(4, b"x" * 8))],
        "at byte 0 of the values, but the next byte is 4"),
    "a chunk above 16 MiB": (lambda: [frame(header(17 * MIB)), frame(chunk=(0, bytes(16 * MIB + 1)))], "16777216"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_put_is_refused_and_leaves_nothing_behind_for(registered: DataPlaneClient, stub: Any, name: str) -> None:
    make, fragment = BROKEN[name]
    with unchanged(registered):
        code, reason, message = refusal(lambda: stub.PutSamples(iter(make()), timeout=120))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_STREAM")
    assert fragment in message


def test_a_chunk_of_16_mib_is_accepted(registered: DataPlaneClient, stub: Any) -> None:
    response = stub.PutSamples(iter([frame(header(16 * MIB), (0, bytes(16 * MIB)))]), timeout=120)
    assert (response.created_rows, response.size_bytes) == (1, 16 * MIB)


def test_a_message_above_the_servers_limit_is_refused_and_leaves_nothing_behind(
    registered: DataPlaneClient, stub: Any
) -> None:
    with unchanged(registered), pytest.raises(grpc.RpcError) as caught:
        stub.PutSamples(iter([frame(header(21 * MIB), (0, bytes(21 * MIB)))]), timeout=120)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_header_and_values_may_come_in_any_number_of_frames(registered: DataPlaneClient, stub: Any) -> None:
    frames = [frame(header()), *(frame(chunk=(i, bytes([i]))) for i in range(12))]
    assert stub.PutSamples(iter(frames), timeout=120).size_bytes == 12
    assert registered.get_samples(["s"], "p", ["x"])["x"].tolist() == [list(range(12))]


def raw_put(channel: grpc.Channel, *frames: bytes) -> pb.PutSamplesResponse:
    """Put frames whose bytes are as given."""
    method = f"/{pb.DESCRIPTOR.services_by_name['DataPlaneService'].full_name}/PutSamples"
    call: Any = channel.stream_unary(method, lambda data: data, pb.PutSamplesResponse.FromString)
    response: pb.PutSamplesResponse = call(iter(frames), timeout=120)
    return response


CHUNK = frame(chunk=(0, b"x" * 12)).SerializeToString()


def test_a_put_is_accepted_in_an_unusual_encoding(registered: DataPlaneClient, channel: grpc.Channel) -> None:
    message = CHUNK + frame(header()).SerializeToString() + b"\x0a\x00"  # the header last, and in two pieces
    assert raw_put(channel, message).size_bytes == 12
    assert bytes(registered.get_samples(["s"], "p", ["x"])["x"][0].tolist()) == b"x" * 12


class HeldStream:
    """A stream that stops after its first frames until it is let go."""

    def __init__(self, first: Sequence[pb.PutSamplesRequest], rest: Sequence[pb.PutSamplesRequest] = ()) -> None:
        self._first, self._rest = first, rest
        self.let_go = threading.Event()

    def __iter__(self) -> Iterator[pb.PutSamplesRequest]:
        yield from self._first
        self.let_go.wait(120)
        yield from self._rest


def test_a_repeated_put_takes_the_place_of_one_whose_stream_hangs(registered: DataPlaneClient, stub: Any) -> None:
    what = header(4, request_id="the-same")
    stream = HeldStream([frame(what, (0, b"ol"))], [frame(chunk=(2, b"d!"))])
    hanging = stub.PutSamples.future(iter(stream), timeout=120)
    eventually(lambda: registered.server_status().memory_used_bytes == 4)
    assert stub.PutSamples(iter([frame(what, (0, b"new!"))]), timeout=120).created_rows == 1
    stream.let_go.set()
    assert hanging.exception(20).code() is grpc.StatusCode.ABORTED
    assert bytes(registered.get_samples(["s"], "p", ["x"])["x"][0].tolist()) == b"new!"
    assert registered.server_status().memory_used_bytes == 4


def test_an_append_whose_place_was_taken_copies_nothing_into_space_that_others_have(
    client: DataPlaneClient, stub: Any
) -> None:
    client.register_partition("p", ["x", "y"], 0, ["train"], per_token_fields=["x"])

    def put(text: bytes, name: str = "x", **more: Any) -> pb.PutSamplesRequest:
        column = pb.Column(name=name, kind=pb.FIELD_KIND_JAGGED, data_type=pb.DATA_TYPE_UINT8)
        column.row_lengths = np.array([len(text)], "<i8").tobytes()
        return frame(header(columns=[column], **more), (0, text))

    stub.PutSamples(iter([put(b"old!")]), timeout=120)
    used = client.server_status().memory_used_bytes
    stream = HeldStream([put(b"new!", request_id="the-same", append=True)])
    hanging = stub.PutSamples.future(iter(stream), timeout=120)
    eventually(lambda: client.server_status().memory_used_bytes > used)
    stub.PutSamples(iter([put(b"new!", request_id="the-same", append=True)]), timeout=120)
    stub.PutSamples(iter([put(b"zzzz", "y", sample_ids=["t"])]), timeout=120)  # where the row began before
    stream.let_go.set()
    assert hanging.exception(20).code() is grpc.StatusCode.ABORTED
    assert bytes(client.get_samples(["s"], "p", ["x"])["x"][0].tolist()) == b"old!new!"


def test_a_put_of_one_frame_is_answered_before_its_stream_ends(registered: DataPlaneClient, stub: Any) -> None:
    stream = HeldStream([frame(header(one_frame=True), (0, b"x" * 12))])
    assert stub.PutSamples(iter(stream), timeout=120).size_bytes == 12
    stream.let_go.set()
    assert bytes(registered.get_samples(["s"], "p", ["x"])["x"][0].tolist()) == b"x" * 12


@pytest.mark.parametrize(
    ("chunk", "fragment"),
    [((0, b"x" * 8), "after 8 of 12 bytes"), ((4, b"x" * 12), "chunk at byte 4"), ((0, b"x" * 13), "more than the 12")],
    ids=["too few", "at another place", "too many"],
)
def test_a_put_of_one_frame_with_other_values_than_it_declares_leaves_nothing_behind(
    registered: DataPlaneClient, stub: Any, chunk: Any, fragment: str
) -> None:
    with unchanged(registered):
        put = [frame(header(one_frame=True), chunk)]
        _, reason, message = refusal(lambda: stub.PutSamples(iter(put), timeout=120))
    assert reason == "MALFORMED_STREAM"
    assert fragment in message

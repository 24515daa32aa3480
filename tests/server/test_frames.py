"""Incoming streams, frame by frame, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.service import frames
from dataplane_server.service.frames import FrameReader
from rl_dataplane.v1 import data_plane_pb2 as pb

HEADER = pb.PutSamplesHeader(request_id="r")


async def stream(*sent: pb.PutSamplesRequest, then_hang: bool = False) -> AsyncIterator[pb.PutSamplesRequest]:
    for frame in sent:
        yield frame
    if then_hang:
        await asyncio.Event().wait()


def chunk(offset: int, data: bytes, header: pb.PutSamplesHeader | None = None) -> pb.PutSamplesRequest:
    return pb.PutSamplesRequest(header=header, chunk=pb.Chunk(offset_bytes=offset, data=data))


async def received(reader: FrameReader[pb.PutSamplesRequest], size_bytes: int) -> bytes:
    await reader.first()
    return b"".join([data async for data in reader.chunks(size_bytes)])


@pytest.mark.parametrize(
    "sent",
    [
        [chunk(0, b"abc", HEADER)],
        [pb.PutSamplesRequest(header=HEADER), chunk(0, b"abc")],
        [chunk(0, b"a", HEADER), chunk(1, b"b"), chunk(2, b"c")],
        [chunk(0, b"", HEADER), chunk(0, b"abc"), chunk(3, b"")],
        [chunk(0, b"ab", HEADER), pb.PutSamplesRequest(), chunk(2, b"c")],
    ],
    ids=["one frame", "header apart", "many chunks", "empty chunks", "an empty frame"],
)
async def test_a_stream_is_taken_as(sent: list[pb.PutSamplesRequest]) -> None:
    assert await received(FrameReader(stream(*sent)), 3) == b"abc"


async def test_the_header_may_be_all_there_is() -> None:
    assert await received(FrameReader(stream(pb.PutSamplesRequest(header=HEADER))), 0) == b""


async def test_a_stream_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "STALL_TIMEOUT_S", 0.02)
    reader = FrameReader(stream(chunk(0, b"a", HEADER), then_hang=True))
    with pytest.raises(Refusal, match="stalled") as caught:
        await received(reader, 3)
    assert caught.value.reason is Reason.MALFORMED_STREAM


async def test_a_stream_that_never_begins_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "STALL_TIMEOUT_S", 0.02)
    with pytest.raises(Refusal, match="stalled"):
        await FrameReader(stream(then_hang=True)).first()


async def test_chunks_before_a_broken_one_are_handed_on() -> None:
    reader = FrameReader(stream(chunk(0, b"ab", HEADER), chunk(9, b"c")))
    await reader.first()
    taken = reader.chunks(3)
    assert await anext(taken) == b"ab"
    with pytest.raises(Refusal, match="at byte 9 of the stream came where byte 2 was next"):
        await anext(taken)

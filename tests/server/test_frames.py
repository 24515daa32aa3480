"""Streams, frame by frame, without a connection; more of them, with one, in `tests/integration/wire`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.messages.frames import FrameReader
from dataplane_server.service.messages.parsing import Messages
from rl_dataplane.v1 import data_plane_pb2 as pb

HEADER = pb.PutSamplesHeader(request_id="r")


async def stream(*sent: pb.PutSamplesRequest | bytes, then_hang: bool = False) -> AsyncIterator[bytes]:
    for frame in sent:
        yield frame if isinstance(frame, bytes) else frame.SerializeToString()
    if then_hang:
        await asyncio.Event().wait()


def chunk(offset: int, data: bytes, header: pb.PutSamplesHeader | None = None) -> pb.PutSamplesRequest:
    return pb.PutSamplesRequest(header=header, chunk=pb.Chunk(offset_bytes=offset, data=data))


def reader_of(frames: AsyncIterator[bytes], **options: float) -> FrameReader[pb.PutSamplesHeader]:
    return FrameReader(frames, pb.PutSamplesHeader, Messages(Limits()), **options)


async def received(reader: FrameReader[pb.PutSamplesHeader], size_bytes: int) -> bytes:
    assert await reader.first() == HEADER
    return b"".join([bytes(data) async for data in reader.chunks(size_bytes)])


@pytest.mark.parametrize("sent", [[], [chunk(0, b"a", HEADER)]], ids=["before it begins", "later"])
async def test_a_stream_that_stalls_is_given_up(sent: list[pb.PutSamplesRequest]) -> None:
    reader = reader_of(stream(*sent, then_hang=True), stall_timeout_s=0.02)
    with pytest.raises(Refusal, match="stalled") as caught:
        await received(reader, 3)
    assert caught.value.reason is Reason.MALFORMED_STREAM


@pytest.mark.parametrize("frame", [b"x", b""], ids=["bytes", "nothing"])
async def test_a_stream_that_never_stalls_must_end_in_time_all_the_same(frame: bytes) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        yield chunk(0, b"", HEADER).SerializeToString()
        for number in range(1000):
            await asyncio.sleep(0.01)
            yield chunk(number if frame else 0, frame).SerializeToString()

    reader = reader_of(trickle(), stall_timeout_s=0.1)
    with pytest.raises(Refusal, match=r"0.1 s, .*64 KiB"):
        await received(reader, 1000)
    assert reader.received_bytes < 100


async def test_a_large_stream_has_more_time() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield chunk(0, b"", HEADER).SerializeToString()
        for number in range(8):
            await asyncio.sleep(0.3)
            yield chunk(number << 17, bytes(1 << 17)).SerializeToString()

    assert len(await received(reader_of(slow(), stall_timeout_s=2.0), 1 << 20)) == 1 << 20


class Message(bytes):
    """Counts those that are alive."""

    alive = 0

    def __new__(cls, data: bytes) -> Message:
        cls.alive += 1
        return super().__new__(cls, data)

    def __del__(self) -> None:
        Message.alive -= 1


async def test_a_message_is_let_go_before_the_next_one_comes() -> None:
    async def counted() -> AsyncIterator[bytes]:
        for offset in range(4):
            assert Message.alive == 0
            yield Message(chunk(offset, b"x", HEADER if offset == 0 else None).SerializeToString())

    reader = reader_of(counted())
    await reader.first()
    data = [bytes(view) async for view in reader.chunks(4)]  # the loop's variable keeps the view, not the message
    assert data == [b"x"] * 4

"""Streams of frames: a header first, then chunks that continue one another, up to the size the header declares.

Frames come and go as bytes, so values are copied once on either way: from the message that gRPC received into the
arena, and from the arena into the message that gRPC sends. A stream holds one message at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Generic, TypeVar, cast

from google.protobuf.message import DecodeError

from dataplane_server.core.calls.refusal import Reason, Refusal
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.frames import Frame, frame_prefix, parse_frame

MAX_CHUNK_BYTES = 16 << 20
MAX_MESSAGE_BYTES = MAX_CHUNK_BYTES + (4 << 20)
"""Room for a chunk and its frame, or for a header with as many ids as a call may name."""
SENT_CHUNK_BYTES = 2 << 20
STALL_TIMEOUT_S = 60.0
"""A caller that sends nothing for so long in the middle of a stream has lost its stream."""

Header = TypeVar("Header", pb.PutSamplesHeader, pb.CommitClaimHeader)


class FrameReader(Generic[Header]):
    """Reads one incoming stream and checks its order. Refusal MALFORMED_STREAM says what is wrong with which frame."""

    def __init__(self, stream: AsyncIterator[bytes], header: type[Header]) -> None:
        self._stream: AsyncIterator[bytes] = stream
        self._header: type[Header] = header
        self._first: Frame | None = None
        self._stalled = False
        self.received_bytes = 0

    async def first(self) -> Header:
        """The header; the chunk of its frame, if it has one, is the first of `chunks`."""
        frame = await self._next()
        if frame is None or frame.header is None:
            raise Refusal(Reason.MALFORMED_STREAM, "the first frame of a stream must hold the header")
        self._first = frame._replace(header=None)
        header: Header = self._header()
        try:
            header.ParseFromString(frame.header)
        except DecodeError as error:
            raise Refusal(Reason.MALFORMED_STREAM, f"the header of the stream is none: {error}") from None
        return header

    async def chunks(self, size_bytes: int) -> AsyncIterator[memoryview]:
        """The bytes after the header, which must be size_bytes in all. Each view ends when the next one is asked for:
        its message goes before another one comes.
        """
        frame, self._first = self._first, None
        while frame is not None:
            if frame.chunk is not None:
                with frame.chunk as values:
                    check_chunk(frame.offset, len(values), self.received_bytes, size_bytes)
                    self.received_bytes += len(values)
                    yield values
            frame = await self._next()
            if frame is not None and frame.header is not None:
                raise Refusal(Reason.MALFORMED_STREAM, "a stream holds one header, in its first frame")
        if self.received_bytes != size_bytes:
            message = f"the stream ended after {self.received_bytes} of {size_bytes} bytes of values"
            raise Refusal(Reason.MALFORMED_STREAM, message)

    async def _next(self) -> Frame | None:
        try:
            message = await self._message()
        except StopAsyncIteration:
            return None
        try:
            return parse_frame(message)
        except ValueError as error:
            text = f"after {self.received_bytes} bytes of values came what is {error}"
            raise Refusal(Reason.MALFORMED_STREAM, text) from None

    async def _message(self) -> bytes:
        """The next message. asyncio.wait_for would cost a task for each."""
        task = cast("asyncio.Task[object]", asyncio.current_task())  # whatever awaits runs in a task
        timer = asyncio.get_running_loop().call_later(STALL_TIMEOUT_S, self._give_up, task)
        try:
            return await self._stream.__anext__()
        except asyncio.CancelledError:
            if self._stalled:
                text = f"the stream stalled: no frame for {STALL_TIMEOUT_S:.0f} s"
                raise Refusal(Reason.MALFORMED_STREAM, text) from None
            raise
        finally:
            timer.cancel()

    def _give_up(self, waiting: asyncio.Task[object]) -> None:
        self._stalled = True
        waiting.cancel()


def check_chunk(offset: int, size: int, received: int, size_bytes: int) -> None:
    """Refusal MALFORMED_STREAM unless the chunk continues the stream within its declared size."""
    if offset != received:
        message = f"a chunk at byte {offset} of the stream came where byte {received} was next"
    elif size > MAX_CHUNK_BYTES:
        message = f"a chunk holds {size} bytes; at most {MAX_CHUNK_BYTES} are accepted"
    elif received + size > size_bytes:
        message = f"the stream holds more than the {size_bytes} bytes of values that its header declares"
    else:
        return
    raise Refusal(Reason.MALFORMED_STREAM, message)


def read_frames(header: pb.ReadColumnsHeader, chunks: Iterable[list[memoryview]]) -> Iterator[bytes]:
    """The frames of a read: the header in the first one, and each chunk, of which the pieces are given, in its own."""
    head: bytes | None = header.SerializeToString()
    offset = 0
    for pieces in chunks:
        size = sum(map(len, pieces))
        yield b"".join((frame_prefix(head, offset, size), *pieces))
        head = None
        offset += size
    if head is not None:
        yield pb.ReadColumnsResponse(header=header).SerializeToString()

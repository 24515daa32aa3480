"""Streams of frames: a header, then chunks in order whose total size the header declares.

Frames are read and written as bytes, so values are copied once: from the message that gRPC received into the arena, or
from the arena into the message that gRPC sends. A stream holds one message at a time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Generic, TypeVar, cast

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.messages.parsing import Messages
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.frames import Frame, frame_prefix, parse_frame

MAX_CHUNK_BYTES = 16 << 20
MAX_MESSAGE_BYTES = MAX_CHUNK_BYTES + (4 << 20)
"""Enough for a chunk and its frame, or for a header with the most ids that a call may name."""
SENT_CHUNK_BYTES = 2 << 20
STALL_TIMEOUT_S = 60.0
"""A stream is refused if its caller sends nothing for this long in the middle of it."""
SLOWEST_BYTES_S = 64 << 10
"""A stream is refused if its values take longer than STALL_TIMEOUT_S and what they take at this rate."""

Header = TypeVar("Header", pb.PutSamplesHeader, pb.CommitClaimHeader)


class FrameReader(Generic[Header]):
    """Reads one incoming stream and checks its order. Refusal MALFORMED_STREAM names the error and where it is."""

    def __init__(
        self,
        stream: AsyncIterator[bytes],
        header: type[Header],
        messages: Messages,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        self._messages = messages
        self._stall_timeout_s = stall_timeout_s
        self._stream: AsyncIterator[bytes] = stream
        self._header: type[Header] = header
        self._first: Frame | None = None
        self._stalled = False
        self._ends = math.inf
        self.received_bytes = 0

    async def first(self) -> Header:
        """The header. If its frame has a chunk, that is the first of `chunks`."""
        frame = await self._next()
        if frame is None or frame.header is None:
            raise Refusal(Reason.MALFORMED_STREAM, "the first frame of a stream must hold the header")
        self._first = frame._replace(header=None)
        try:
            return self._messages.parse(self._header, frame.header, "stream header")
        except Refusal as refusal:
            raise Refusal(Reason.MALFORMED_STREAM, refusal.message, **refusal.metadata) from None

    @property
    def first_bytes(self) -> int:
        """The values in the first frame, until `chunks` has begun."""
        return 0 if self._first is None or self._first.chunk is None else len(self._first.chunk)

    def only_chunk(self) -> memoryview | None:
        """The values of a stream of one frame, whose header says so. `chunks` has them, too."""
        return None if self._first is None or self._first.offset else self._first.chunk

    async def chunks(self, size_bytes: int) -> AsyncIterator[memoryview]:
        """The values after the header, which must have size_bytes together. A view is valid until the next one is asked
        for: its message is freed before the next is read.
        """
        frame, self._first = self._first, None
        self._ends = asyncio.get_running_loop().time() + self._stall_timeout_s + size_bytes / SLOWEST_BYTES_S
        while frame is not None:
            if frame.chunk is not None:
                with frame.chunk as values:
                    check_chunk(frame.offset, len(values), self.received_bytes, size_bytes)
                    self.received_bytes += len(values)
                    yield values
            frame = await self._next()
            if frame is not None and frame.header is not None:
                raise Refusal(Reason.MALFORMED_STREAM, "second header in a stream: only the first frame may hold one")
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
            text = f"at byte {self.received_bytes} of the values: {error}"
            raise Refusal(Reason.MALFORMED_STREAM, text) from None

    async def _message(self) -> bytes:
        """The next message. Not asyncio.wait_for, which makes a task for each."""
        task = cast("asyncio.Task[object]", asyncio.current_task())  # a coroutine that awaits runs in a task
        loop = asyncio.get_running_loop()
        timer = loop.call_at(min(loop.time() + self._stall_timeout_s, self._ends), self._give_up, task)
        try:
            return await self._stream.__anext__()
        except asyncio.CancelledError:
            if self._stalled:
                seconds, kib = f"{self._stall_timeout_s:g} s", SLOWEST_BYTES_S >> 10
                text = (
                    f"the stream stalled after {self.received_bytes} bytes of values: a frame may take {seconds}, and "
                    f"all values that and a second for each {kib} KiB"
                )
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
        message = f"chunk at byte {offset} of the values, but the next byte is {received}"
    elif size > MAX_CHUNK_BYTES:
        message = f"chunk of {size} bytes; the limit is {MAX_CHUNK_BYTES}"
    elif received + size > size_bytes:
        message = f"the stream holds more than the {size_bytes} bytes of values that its header declares"
    else:
        return
    raise Refusal(Reason.MALFORMED_STREAM, message)


def read_frames(header: pb.ReadColumnsHeader, chunks: Iterable[list[memoryview]]) -> Iterator[bytes]:
    """The frames of a read: one for each chunk, the first with the header. chunks: each as views of its pieces. Refusal
    LIMIT_REACHED if the first one exceeds a message.
    """
    head: bytes | None = header.SerializeToString()
    offset = 0
    for pieces in chunks:
        size = sum(map(len, pieces))
        yield in_message(b"".join((frame_prefix(head, offset, size), *pieces)))
        head = None
        offset += size
    if head is not None:
        yield in_message(pb.ReadColumnsResponse(header=header).SerializeToString())


def in_message(frame: bytes) -> bytes:
    """The first frame of a read. Refusal LIMIT_REACHED if it exceeds a message."""
    if len(frame) > MAX_MESSAGE_BYTES:
        message = f"the lengths of the rows, with the first values, take {len(frame)} bytes"
        message += f", the limit is {MAX_MESSAGE_BYTES}: read fewer rows or fields at a time"
        raise Refusal(Reason.LIMIT_REACHED, message)
    return frame

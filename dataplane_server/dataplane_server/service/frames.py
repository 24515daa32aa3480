"""Streams of frames: a header first, then chunks that continue one another, up to the size the header declares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from dataplane_server.core.refusal import Reason, Refusal
from rl_dataplane.v1 import data_plane_pb2 as pb

MAX_CHUNK_BYTES = 16 << 20
SENT_CHUNK_BYTES = 2 << 20
STALL_TIMEOUT_S = 60.0
"""A caller that sends nothing for so long in the middle of a stream has lost its stream."""

Request = TypeVar("Request", pb.PutSamplesRequest, pb.CommitClaimRequest)


class FrameReader(Generic[Request]):
    """Reads one incoming stream and checks its order. Refusal MALFORMED_STREAM says what is wrong with which frame."""

    def __init__(self, stream: AsyncIterator[Request]) -> None:
        self._stream: AsyncIterator[Request] = stream
        self._first: Request | None = None
        self.received_bytes = 0

    async def first(self) -> Request:
        """The frame with the header; its chunk, if it has one, is the first of `chunks`."""
        frame = await self._next()
        if frame is None or not frame.HasField("header"):
            raise Refusal(Reason.MALFORMED_STREAM, "the first frame of a stream must hold the header")
        self._first = frame
        return frame

    async def chunks(self, size_bytes: int) -> AsyncIterator[bytes]:
        """The bytes after the header, which must be size_bytes in all."""
        frame = self._first
        while frame is not None:
            if frame.HasField("chunk"):
                check_chunk(frame.chunk, self.received_bytes, size_bytes)
                self.received_bytes += len(frame.chunk.data)
                yield frame.chunk.data
            frame = await self._next()
            if frame is not None and frame.HasField("header"):
                raise Refusal(Reason.MALFORMED_STREAM, "a stream holds one header, in its first frame")
        if self.received_bytes != size_bytes:
            message = f"the stream ended after {self.received_bytes} of {size_bytes} bytes of values"
            raise Refusal(Reason.MALFORMED_STREAM, message)

    async def _next(self) -> Request | None:
        try:
            return await asyncio.wait_for(self._stream.__anext__(), STALL_TIMEOUT_S)
        except StopAsyncIteration:
            return None
        except asyncio.TimeoutError:
            message = f"the stream stalled: no frame for {STALL_TIMEOUT_S:.0f} s"
            raise Refusal(Reason.MALFORMED_STREAM, message) from None


def check_chunk(chunk: pb.Chunk, received: int, size_bytes: int) -> None:
    """Refusal MALFORMED_STREAM unless the chunk continues the stream within its declared size."""
    size = len(chunk.data)
    if chunk.offset_bytes != received:
        message = f"a chunk at byte {chunk.offset_bytes} of the stream came where byte {received} was next"
    elif size > MAX_CHUNK_BYTES:
        message = f"a chunk holds {size} bytes; at most {MAX_CHUNK_BYTES} are accepted"
    elif received + size > size_bytes:
        message = f"the stream holds more than the {size_bytes} bytes of values that its header declares"
    else:
        return
    raise Refusal(Reason.MALFORMED_STREAM, message)

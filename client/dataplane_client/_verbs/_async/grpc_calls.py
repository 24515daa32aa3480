"""Calls over gRPC, with values in streams of chunks. They work from any host.

Frames of streams are written and read as bytes, so a value is copied once into its frame and once out of its chunk, to
its final place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from google.protobuf.message import Message

from dataplane_client._connect.channel import open_aio_channel
from dataplane_client._connect.options import Credentials
from dataplane_client._connect.secured import Secured
from dataplane_client._memory.local_protocol import INLINE_BYTES
from dataplane_client._memory.placement import Destination, PlacedColumn, ReadBuffers, StreamBuffers, blame_server
from dataplane_client._requests.row_write import RowWrite
from dataplane_client._values.column_messages import column_layouts
from dataplane_client._values.columns_layout import WireColumn, split_into_chunks
from dataplane_client._values.digests import digest_check
from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from rl_dataplane.v1.frames import frame_prefix, parse_frame

_SERVICE = pb.DESCRIPTOR.services_by_name["DataPlaneService"]
_WRITES: dict[str, Any] = {"PutSamples": pb.PutSamplesResponse, "CommitClaim": pb.CommitClaimResponse}


class AsyncGrpcCalls:
    """One channel to one server. secured: what its calls are sent with."""

    transport: Literal["grpc"] = "grpc"

    def __init__(self, target: str, chunk_bytes: int, credentials: Credentials | None = None) -> None:
        self.target = target
        self._chunk_bytes = chunk_bytes
        self.secured = Secured(target, credentials)
        self._channel = open_aio_channel(target, self.secured)
        self._stub: Any = pb_grpc.DataPlaneServiceStub(self._channel)
        self._writes: dict[str, Any] = {
            verb: self._channel.stream_unary(_path(verb), None, response.FromString)
            for verb, response in _WRITES.items()
        }
        self._read: Any = self._channel.unary_stream(
            _path("ReadColumns"), pb.ReadColumnsRequest.SerializeToString, None
        )

    async def close(self) -> None:
        """Close the channel; calls under way end with an error."""
        await self._channel.close()

    async def unary(self, verb: str, request: Message, timeout_s: float, traceparent: str = "") -> Any:
        """Call a method with one request."""
        return await getattr(self._stub, verb)(request, timeout=timeout_s, metadata=self.secured.metadata(traceparent))

    async def write(self, write: RowWrite, timeout_s: float, traceparent: str = "") -> Any:
        """Put or commit, as a stream whose first frame holds the header."""
        write.hash_values()
        write.header.one_frame = write.size_bytes <= min(INLINE_BYTES, self._chunk_bytes)
        frames = _frames(write.header.SerializeToString(), write.columns, self._chunk_bytes)
        return await self._writes[write.verb](frames, timeout=timeout_s, metadata=self.secured.metadata(traceparent))

    async def read(
        self, request: pb.ReadColumnsRequest, destination: Destination, timeout_s: float, traceparent: str = ""
    ) -> list[PlacedColumn]:
        """Read columns; never as views."""
        n_rows, what = len(request.sample_ids), f"ReadColumns at {self.target}"
        buffers: ReadBuffers | None = None
        stream: StreamBuffers | None = None
        async for data in self._read(request, timeout=timeout_s, metadata=self.secured.metadata(traceparent)):
            with blame_server(what):
                frame = parse_frame(data)
            if buffers is None or stream is None:
                header = pb.ReadColumnsHeader.FromString(frame.header or b"")
                check = digest_check(header, request, what)
                buffers = ReadBuffers(column_layouts(header, request), n_rows, destination, check)
                stream = buffers.stream()
            if frame.chunk:
                with blame_server(what):
                    stream.add(frame.offset, frame.chunk)
            del data, frame  # frees their memory for the next message
        if buffers is None or stream is None:
            raise InternalError(f"{what}: the stream had no frame")
        with blame_server(what):
            stream.finish()
        return buffers.columns


def _path(verb: str) -> str:
    return f"/{_SERVICE.full_name}/{verb}"


def _frames(header: bytes, columns: Sequence[WireColumn], chunk_bytes: int) -> Iterator[bytes]:
    head: bytes | None = header
    offset = 0
    for views in split_into_chunks(columns, chunk_bytes):
        size = sum(view.nbytes for view in views)
        yield b"".join([frame_prefix(head, offset, size), *views])
        offset, head = offset + size, None
    if head is not None:
        yield frame_prefix(head, 0, 0)

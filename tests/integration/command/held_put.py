"""A call under way for as long as a test wants it to be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

SIZE = 1 << 20


class HeldPut:
    """A put of one row of 2 * SIZE bytes over gRPC, whose second half waits to be let go."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.let_go = threading.Event()
        stub: Any = pb_grpc.DataPlaneServiceStub(channel)
        self.call = stub.PutSamples.future(self._frames(), timeout=60)

    def _frames(self) -> Iterator[pb.PutSamplesRequest]:
        column = pb.Column(name="x", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_UINT8, row_shape=[2 * SIZE])
        header = pb.PutSamplesHeader(request_id="held", partition_id="p", sample_ids=["held"], columns=[column])
        yield pb.PutSamplesRequest(header=header, chunk=pb.Chunk(data=bytes(SIZE)))
        self.let_go.wait(60)
        yield pb.PutSamplesRequest(chunk=pb.Chunk(offset_bytes=SIZE, data=bytes(SIZE)))

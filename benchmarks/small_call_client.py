"""One raw client of small calls, as a worker (see `serving`): messages and a connection, without our client's code.

So what it costs itself is small beside the server's part, and as many as 16 fit on the server's machine.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import numpy as np

from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import data_plane_pb2_grpc as plane_grpc
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import HEAD
from serving import serve

VALUES = np.arange(1_000, dtype="<i8").tobytes()
PARTITION, TASK, FIELD = "small", "train", "x"
_TIMEOUT_S = 20


class OverGrpc:
    """The service's stub on a channel of its own."""

    def __init__(self, address: str) -> None:
        self._stub: Any = plane_grpc.DataPlaneServiceStub(grpc.insecure_channel(address))

    def put(self, header: plane_pb.PutSamplesHeader) -> None:
        chunk = plane_pb.Chunk(offset_bytes=0, data=VALUES)
        self._stub.PutSamples(iter([plane_pb.PutSamplesRequest(header=header, chunk=chunk)]), timeout=_TIMEOUT_S)

    def read(self, request: plane_pb.ReadColumnsRequest) -> int:
        return sum(len(answer.chunk.data) for answer in self._stub.ReadColumns(request, timeout=_TIMEOUT_S))

    def claim(self, request: plane_pb.ClaimSamplesRequest) -> plane_pb.ClaimSamplesResponse:
        claimed: plane_pb.ClaimSamplesResponse = self._stub.ClaimSamples(request, timeout=_TIMEOUT_S)
        return claimed

    def commit(self, header: plane_pb.CommitClaimHeader) -> None:
        self._stub.CommitClaim(iter([plane_pb.CommitClaimRequest(header=header)]), timeout=_TIMEOUT_S)


class AtPort:
    """Frames of local.proto at the direct port of a server."""

    def __init__(self, address: str, nonce: bytes) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._call(pb.LOCAL_METHOD_DIRECT, pb.DirectRequest(nonce=nonce))

    def put(self, header: plane_pb.PutSamplesHeader) -> None:
        self._call(pb.LOCAL_METHOD_PUT, pb.LocalPutRequest(header=header, handle=1, values=VALUES))

    def read(self, request: plane_pb.ReadColumnsRequest) -> int:
        local = pb.LocalReadRequest(request=request, handle=1, inline_bytes=len(VALUES))
        return len(pb.LocalReadResponse.FromString(self._call(pb.LOCAL_METHOD_READ, local)).values)

    def claim(self, request: plane_pb.ClaimSamplesRequest) -> plane_pb.ClaimSamplesResponse:
        return plane_pb.ClaimSamplesResponse.FromString(self._call(pb.LOCAL_METHOD_CLAIM_SAMPLES, request))

    def commit(self, header: plane_pb.CommitClaimHeader) -> None:
        self._call(pb.LOCAL_METHOD_COMMIT, pb.LocalCommitRequest(header=header, handle=1, values=b""))

    def _call(self, method: int, request: Any) -> bytes:
        body = request.SerializeToString()
        self._socket.sendall(HEAD.pack(len(body), method) + body)
        size, outcome = HEAD.unpack(self._received(HEAD.size))
        answer = self._received(size)
        if outcome != pb.LOCAL_OUTCOME_UNSPECIFIED:
            raise RuntimeError(f"method {method} was refused: {answer!r}")
        return answer

    def _received(self, size: int) -> bytes:
        data = self._socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError("the server closed the connection")
        return data


class Calls:
    """The calls of the driver."""

    def __init__(self) -> None:
        self._server: OverGrpc | AtPort | None = None
        self._numbers = itertools.count()
        self._name = str(os.getpid())

    def connect(self, transport: str, address: str, nonce: str) -> Mapping[str, Any]:
        self._server = OverGrpc(address) if transport == "grpc" else AtPort(address, bytes.fromhex(nonce))
        return {}

    def run(self, operation: str, seconds: float) -> Mapping[str, Any]:
        """Repeat an operation for this time. Returns how often, and in how many seconds."""
        if self._server is None:
            raise RuntimeError("there is no connection")
        once = getattr(self, f"_{operation}")(self._server)
        began, done = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            once()
            done += 1
        return {"done": done, "seconds": time.monotonic() - began}

    def _put(self, server: OverGrpc | AtPort) -> Callable[[], None]:
        """A put of one row of 8 kB, always the same one."""
        lengths = np.array([1_000], "<i8").tobytes()
        column = plane_pb.Column(
            name=FIELD, kind=plane_pb.FIELD_KIND_JAGGED, data_type=plane_pb.DATA_TYPE_INT64, row_lengths=lengths
        )

        def once() -> None:
            header = plane_pb.PutSamplesHeader(
                request_id=self._request_id(), partition_id=PARTITION, sample_ids=[self._name], columns=[column]
            )
            header.wait_timeout.FromSeconds(_TIMEOUT_S)
            server.put(header)

        return once

    def _read(self, server: OverGrpc | AtPort) -> Callable[[], None]:
        """A read of that row."""
        self._put(server)()
        request = plane_pb.ReadColumnsRequest(partition_id=PARTITION, sample_ids=[self._name], fields=[FIELD])

        def once() -> None:
            if server.read(request) != len(VALUES):
                raise RuntimeError("the row came back changed")

        return once

    def _claim(self, server: OverGrpc | AtPort) -> Callable[[], None]:
        """A claim of one row and its commit."""
        mode = plane_pb.CLAIM_MODE_ACKNOWLEDGED

        def once() -> None:
            request = plane_pb.ClaimSamplesRequest(
                request_id=self._request_id(), partition_id="claimed", task=TASK, required_fields=[FIELD], mode=mode
            )
            request.batch_size = 1
            request.wait_timeout.FromSeconds(_TIMEOUT_S)
            claimed = server.claim(request)
            server.commit(plane_pb.CommitClaimHeader(request_id=self._request_id(), claim_id=claimed.claim_id))

        return once

    def _request_id(self) -> str:
        return f"{self._name}-{next(self._numbers)}"


def main() -> None:
    calls = Calls()
    serve({"connect": calls.connect, "run": calls.run})


if __name__ == "__main__":
    main()

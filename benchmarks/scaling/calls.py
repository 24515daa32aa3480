"""Clients without a library: they send the same messages as ours, and as little else as possible takes time in them.

Both make the same call several times at once, each on a connection of its own, and return when all are answered.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from dataplane_client._connect.channel import CHANNEL_OPTIONS
from dataplane_client._memory.local_protocol import LOCAL_METHODS, LOCAL_WRITES, request_frame
from dataplane_client._memory.shared_arena import SharedArena
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from rl_dataplane.v1 import local_pb2
from rl_dataplane.v1.frames import frame_prefix
from rl_dataplane.v1.local_frames import HEAD

PARTITION = "scaling"
TOKENS = 1_000
FIELDS = ("tokens", "mask", "generation_logprobs", "reward")
LOGPROBS = "logprobs"
ROW_BYTES = TOKENS * (4 + 1 + 4) + 4
_DEADLINE_S = 20.0


class NodeClient:
    """A client of a node. It makes all calls at the coordinator, and writes and reads no values.

    place: the node's socket, and the nonce of its memory.
    """

    def __init__(self, place: tuple[str, bytes], calls_at_once: int) -> None:
        self._arena = SharedArena(*place)
        self._handles = itertools.count(1)
        self._sockets = [self._joined() for _ in range(calls_at_once)]

    def _joined(self) -> socket.socket:
        if self._arena.calls_at is None:
            raise RuntimeError("this is the socket of no cluster")
        connection = socket.create_connection(self._arena.calls_at, _DEADLINE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = local_pb2.JoinRequest(session=self._arena.token)
        connection.sendall(request_frame(local_pb2.LOCAL_METHOD_JOIN, request))
        _received(connection)
        return connection

    def call(self, verb: str, requests: Sequence[Any]) -> list[Any]:
        """Unary calls."""
        number, response = LOCAL_METHODS[verb]
        return self._exchange(number, requests, response)

    def reserve(self, verb: str, headers: Sequence[Any]) -> list[int]:
        """The first halves of puts or commits with values; their handles."""
        number, message = LOCAL_WRITES[verb]
        handles = [self._next_handle() for _ in headers]
        requests = [message(header=header, handle=handle) for header, handle in zip(headers, handles, strict=True)]
        self._exchange(number, requests, local_pb2.LocalWriteResponse)
        return handles

    def finish(self, handles: Sequence[int]) -> None:
        """The second halves."""
        requests = [local_pb2.FinishWriteRequest(handle=handle) for handle in handles]
        self._exchange(local_pb2.LOCAL_METHOD_FINISH_WRITE, requests, local_pb2.LocalWriteResponse)

    def commit(self, claims: Sequence[str]) -> None:
        """Commits without values."""
        headers = [_plain_commit(claim) for claim in claims]
        requests = [local_pb2.LocalCommitRequest(header=one, handle=self._next_handle()) for one in headers]
        self._exchange(local_pb2.LOCAL_METHOD_COMMIT, requests, local_pb2.LocalWriteResponse)

    def read(self, requests: Sequence[pb.ReadColumnsRequest]) -> None:
        """Reads, whose leases are released at once."""
        handles = [self._next_handle() for _ in requests]
        messages = [
            local_pb2.LocalReadRequest(request=request, handle=handle)
            for request, handle in zip(requests, handles, strict=True)
        ]
        self._exchange(local_pb2.LOCAL_METHOD_READ, messages, local_pb2.LocalReadResponse)
        self._arena.release(*handles)

    def close(self) -> None:
        """End the client's session."""
        for connection in self._sockets:
            connection.close()
        self._arena.leave()  # at once, whatever still refers to it

    def _next_handle(self) -> int:
        return next(self._handles)

    def _exchange(self, method: int, requests: Iterable[Any], response: Any) -> list[Any]:
        frames = [request_frame(method, request) for request in requests]
        for connection, frame in zip(self._sockets, frames, strict=False):
            connection.sendall(frame)
        return [response.FromString(_received(one)) for one, _ in zip(self._sockets, frames, strict=False)]


def _received(connection: socket.socket) -> bytes:
    """The body of the next response. RuntimeError if it is an error."""
    size, outcome = HEAD.unpack(connection.recv(HEAD.size, socket.MSG_WAITALL))
    body = connection.recv(size, socket.MSG_WAITALL) if size else b""
    if outcome != local_pb2.LOCAL_OUTCOME_UNSPECIFIED:
        raise RuntimeError(f"the coordinator refused a call: {body!r}")
    return body


class GrpcClient:
    """A client outside of the cluster. Values are in its messages."""

    def __init__(self, address: str, calls_at_once: int) -> None:
        options = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        self._channels = [grpc.insecure_channel(address, options) for _ in range(calls_at_once)]
        self._stubs: list[Any] = [pb_grpc.DataPlaneServiceStub(channel) for channel in self._channels]
        self._threads = ThreadPoolExecutor(calls_at_once)

    def call(self, verb: str, requests: Sequence[Any]) -> list[Any]:
        """Unary calls."""
        pairs = zip(self._stubs, requests, strict=False)
        calls = [getattr(stub, verb).future(request, timeout=_DEADLINE_S) for stub, request in pairs]
        return [call.result() for call in calls]

    def write(self, verb: str, headers: Sequence[Any], values: bytes) -> None:
        """Puts or commits of one message."""
        messages = [frame_prefix(header.SerializeToString(), 0, len(values)) + values for header in headers]
        request: Any = pb.PutSamplesRequest if verb == "PutSamples" else pb.CommitClaimRequest
        pairs = zip(self._stubs, messages, strict=False)
        calls = [
            getattr(stub, verb).future(iter([request.FromString(message)]), timeout=_DEADLINE_S)
            for stub, message in pairs
        ]
        for call in calls:
            call.result()

    def commit(self, claims: Sequence[str]) -> None:
        """Commits without values."""
        self.write("CommitClaim", [_plain_commit(claim) for claim in claims], b"")

    def read(self, requests: Sequence[pb.ReadColumnsRequest]) -> None:
        """Reads with their values."""
        pairs = zip(self._stubs, requests, strict=False)
        streams = [stub.ReadColumns(request, timeout=_DEADLINE_S) for stub, request in pairs]
        list(self._threads.map(lambda stream: sum(1 for _ in stream), streams))

    def close(self) -> None:
        """Close all channels."""
        self._threads.shutdown()
        for channel in self._channels:
            channel.close()


# -- messages ----------------------------------------------------------------------------------------------------------


def put_header(ids: Sequence[str]) -> pb.PutSamplesHeader:
    """A put of rows of TOKENS tokens."""
    lengths = np.full(len(ids), TOKENS, "<i8").tobytes()
    jagged = ((FIELDS[0], pb.DATA_TYPE_INT32), (FIELDS[1], pb.DATA_TYPE_UINT8), (FIELDS[2], pb.DATA_TYPE_FLOAT32))
    columns = [
        pb.Column(name=name, kind=pb.FIELD_KIND_JAGGED, data_type=number, row_lengths=lengths)
        for name, number in jagged
    ]
    columns.append(pb.Column(name=FIELDS[3], kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_FLOAT32))
    return pb.PutSamplesHeader(
        request_id=ids[0], partition_id=PARTITION, sample_ids=ids, columns=columns, sequence_lengths=lengths
    )


def commit_header(claim_id: str, rows: int) -> pb.CommitClaimHeader:
    """A commit with a logprob for each token."""
    lengths = np.full(rows, TOKENS, "<i8").tobytes()
    column = pb.Column(name=LOGPROBS, kind=pb.FIELD_KIND_JAGGED, data_type=pb.DATA_TYPE_FLOAT32, row_lengths=lengths)
    return pb.CommitClaimHeader(request_id=f"{claim_id}-commit", claim_id=claim_id, columns=[column])


def _plain_commit(claim_id: str) -> pb.CommitClaimHeader:
    return pb.CommitClaimHeader(request_id=f"{claim_id}-commit", claim_id=claim_id)


def release_request(claim: pb.ClaimSamplesResponse) -> pb.ReleaseClaimRequest:
    """Gives the rows back."""
    return pb.ReleaseClaimRequest(request_id=f"{claim.claim_id}-release", claim_id=claim.claim_id)


def clear_request(claim: pb.ClaimSamplesResponse) -> pb.ClearSamplesRequest:
    """Removes the rows."""
    return pb.ClearSamplesRequest(
        request_id=f"{claim.claim_id}-clear", partition_id=PARTITION, sample_ids=claim.sample_ids
    )


def claim_request(task: str, rows: int, request_id: str) -> pb.ClaimSamplesRequest:
    """A claim of exactly this number of rows."""
    required = FIELDS if task == LOGPROBS else (*FIELDS, LOGPROBS)
    request = pb.ClaimSamplesRequest(
        request_id=request_id,
        partition_id=PARTITION,
        task=task,
        required_fields=required,
        batch_size=rows,
        min_size=rows,
        mode=pb.CLAIM_MODE_ACKNOWLEDGED,
    )
    request.wait_timeout.FromSeconds(int(_DEADLINE_S))
    return request


def read_request(claim: pb.ClaimSamplesResponse, task: str) -> pb.ReadColumnsRequest:
    """A read of what a claim is for."""
    return pb.ReadColumnsRequest(
        partition_id=PARTITION,
        sample_ids=claim.sample_ids,
        generations=claim.generations,
        fields=FIELDS if task == LOGPROBS else (*FIELDS, LOGPROBS),
    )


def registration() -> pb.RegisterPartitionRequest:
    """The partition, with a task that adds logprobs and one that trains."""
    return pb.RegisterPartitionRequest(
        request_id="scaling", partition_id=PARTITION, fields=(*FIELDS, LOGPROBS), tasks=(LOGPROBS, "train")
    )

"""The endpoints that take requests, and how a caller who says what he likes says it to each.

Over gRPC a request is a message, or a stream of frames. At the local socket and the direct port it is a frame with the
number of its method; what has values has a message of its own around it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from tests.hostile.requests import SERVICE
from tests.hostile.target import Target
from tests.integration.wire.local_peer import Peer

from rl_dataplane.v1 import local_pb2
from rl_dataplane.v1.frames import frame_prefix
from rl_dataplane.v1.local_frames import SHARED_METHODS

METHODS = {method.name: method for method in SERVICE.methods}
LOCAL_METHODS: dict[str, int] = {
    **SHARED_METHODS,
    "ReadColumns": local_pb2.LOCAL_METHOD_READ,
    "PutSamples": local_pb2.LOCAL_METHOD_PUT,
    "CommitClaim": local_pb2.LOCAL_METHOD_COMMIT,
}
"""Numbers of methods by verb."""
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
_TIMEOUT_S = 120.0
_handles = itertools.count(1000)


class Answer(NamedTuple):
    """reason: for programs, "" when the request was served."""

    reason: str
    message: str


SERVED = Answer("", "")


def grpc_body(verb: str, message: Message, values: bytes = b"") -> bytes:
    data = message.SerializeToString()
    return frame_prefix(data, 0, len(values)) + values if METHODS[verb].client_streaming else data


def local_body(verb: str, message: Any, values: bytes | None = None) -> bytes:
    """values: None for those that are handed over in memory."""
    if verb == "ReadColumns":
        return local_pb2.LocalReadRequest(request=message, handle=next(_handles)).SerializeToString()
    kinds: dict[str, Any] = {"PutSamples": local_pb2.LocalPutRequest, "CommitClaim": local_pb2.LocalCommitRequest}
    if verb in kinds:
        message = kinds[verb](header=message, handle=next(_handles), values=values or None)
    data: bytes = message.SerializeToString()
    return data


class GrpcEndpoint:
    """The gRPC service. verbs: that an endpoint has. body: makes a request of a message (of a stream: its header) and
    values.
    """

    verbs = tuple(METHODS)
    body = staticmethod(grpc_body)

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def say(self, verb: str, body: bytes) -> Answer:
        """Send bytes as a request; what becomes of it."""
        method = METHODS[verb]
        kinds: dict[tuple[bool, bool], Any] = {
            (False, False): self._channel.unary_unary,
            (True, False): self._channel.stream_unary,
            (False, True): self._channel.unary_stream,
            (True, True): self._channel.stream_stream,
        }
        call = kinds[method.client_streaming, method.server_streaming](f"/{SERVICE.full_name}/{verb}")
        try:
            answer = call(iter([body]) if method.client_streaming else body, timeout=_TIMEOUT_S)
            if method.server_streaming:
                list(answer)
        except grpc.RpcError as error:
            metadata: Any = error.trailing_metadata()
            return _told(dict(metadata)["grpc-status-details-bin"])
        return SERVED


class FramedEndpoint:
    """The local socket or the direct port, over one connection."""

    verbs = tuple(LOCAL_METHODS)
    body = staticmethod(local_body)

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def say(self, verb: str, body: bytes) -> Answer:
        self._peer.send(LOCAL_METHODS[verb], body)
        outcome, answer = self._peer.receive()
        return _told(answer) if outcome == local_pb2.LOCAL_OUTCOME_ERROR else SERVED


def _told(packed: bytes) -> Answer:
    status, info = status_pb2.Status.FromString(packed), error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details), "a refusal names its reason for programs"
    return Answer(info.reason, status.message)


Endpoint = GrpcEndpoint | FramedEndpoint
ENDPOINTS = ("grpc", "local", "direct")


@contextlib.contextmanager
def endpoint_of(target: Target, name: str) -> Iterator[Endpoint]:
    if name == "grpc":
        with grpc.insecure_channel(target.grpc_address, options=OPTIONS) as channel:
            yield GrpcEndpoint(channel)
    else:
        with contextlib.closing(target.join() if name == "local" else target.join_directly()) as peer:
            yield FramedEndpoint(peer)

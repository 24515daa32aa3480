"""The protocol of the local socket (local.proto): frames as bytes, and the methods by their verbs."""

from __future__ import annotations

import errno
from typing import Any

from google.protobuf.message import Message

from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import MAX_BODY_BYTES, SHARED_METHODS, TRACED, frame_of

Address = str | tuple[str, int]
"""The path of a Unix socket, or host and port."""

INLINE_BYTES = 64 << 10
"""Values of up to this many bytes travel in the message: copying them twice costs less than another call."""

CROWDED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)
"""Errors of a connection that passes: the server's backlog is full, or no descriptor is left here."""

_SERVICE = plane_pb.DESCRIPTOR.services_by_name["DataPlaneService"]

LOCAL_METHODS = {
    verb: (number, getattr(plane_pb, _SERVICE.methods_by_name[verb].output_type.name))
    for verb, number in SHARED_METHODS.items()
}
"""Number and response class of the methods that take the same messages as over gRPC."""

LOCAL_WRITES: dict[str, tuple[int, Any]] = {
    "PutSamples": (pb.LOCAL_METHOD_PUT, pb.LocalPutRequest),
    "CommitClaim": (pb.LOCAL_METHOD_COMMIT, pb.LocalCommitRequest),
}
"""Number and request class of the methods that write values."""


def request_frame(method: int, request: Message, traceparent: str = "") -> bytes:
    """A request as a frame. traceparent: the trace context of the call, "" for none. Raises ValueError when the body
    is larger than a frame may be.
    """
    body = request.SerializeToString()
    if traceparent:
        method, body = method | TRACED, traceparent.encode() + body
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"the request has {len(body)} bytes; the limit is {MAX_BODY_BYTES}")
    return frame_of(method, body)

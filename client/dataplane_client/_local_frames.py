"""Frames of the same-host path (local.proto) as bytes."""

from __future__ import annotations

from google.protobuf.message import Message

from rl_dataplane.v1.local_frames import HEAD, MAX_BODY_BYTES, TRACED


def request_frame(method: int, request: Message, traceparent: str = "") -> bytes:
    """A request. traceparent: of the trace that it belongs to, "" for none. Raises ValueError when the body is over the
    limit.
    """
    body = request.SerializeToString()
    if traceparent:
        method, body = method | TRACED, traceparent.encode() + body
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"the request takes {len(body)} bytes; at most {MAX_BODY_BYTES} travel in one message")
    return HEAD.pack(len(body), method) + body


def response_head(head: bytes) -> tuple[int, int]:
    """Size of the body and LocalOutcome. Raises ConnectionError when no server of ours has sent this."""
    size, outcome = HEAD.unpack(head)
    if size > MAX_BODY_BYTES:
        raise ConnectionError(f"a response of {size} bytes")
    return size, outcome

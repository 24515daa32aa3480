"""What both ends of local.proto must agree on beyond its messages: the head of a frame, its bound, names."""

from __future__ import annotations

import hashlib
import os
import struct

from rl_dataplane.v1 import local_pb2 as pb

HEAD = struct.Struct("<IHxx")
"""Size of the body, then LocalMethod (of a request) or LocalOutcome (of a response)."""

TRACED = 1 << 15
"""Set in the method of a request whose body begins with a trace context, which is no part of the message."""

TRACEPARENT_BYTES = 55
"""Of a trace context: `traceparent` as the W3C writes it, version 00, in ASCII."""

MAX_BODY_BYTES = 20 << 20


def frame_of(number: int, body: bytes) -> bytes:
    """A frame. number: LocalMethod of a request, LocalOutcome of a response."""
    return HEAD.pack(len(body), number) + body


def response_head(head: bytes | bytearray) -> tuple[int, int]:
    """Size of the body, and LocalOutcome. Raises ConnectionError when the size is over the limit."""
    size, outcome = HEAD.unpack(head)
    if size > MAX_BODY_BYTES:
        raise ConnectionError(f"the peer announced a response of {size} bytes; the limit is {MAX_BODY_BYTES}")
    return size, outcome


FILE_SUFFIX = ".local"
"""What the path of a local socket has behind that of the gRPC socket beside it."""

_FIRST_SHARED = 16
_IDENTITY = struct.Struct("<QQ")

SHARED_METHODS = {
    "".join(word.capitalize() for word in name.removeprefix("LOCAL_METHOD_").split("_")): int(number)
    for name, number in pb.LocalMethod.items()
    if number >= _FIRST_SHARED
}
"""The methods that are as over gRPC: their numbers by the verb of DataPlaneService."""


def memory_nonce(proof: bytes, descriptor: int) -> bytes:
    """The nonce that names the memory of a descriptor to clients that know the proof."""
    found = os.fstat(descriptor)
    return hashlib.sha256(proof + _IDENTITY.pack(found.st_dev, found.st_ino)).digest()

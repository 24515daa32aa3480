"""Fingerprints of calls, which tell a call that is repeated from another one under the same request_id.

A fingerprint depends on what a call asks for: not on how it arrives, by whom or in which session, since a caller may
repeat it over another transport, or after its session has expired. Values of a put are no part of the call; its columns
are, with their names, element types, shapes and lengths. A caller that wants more compared, or something else, sends a
digest with the call, which then stands for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import msgpack
import numpy as np
from xxhash import xxh3_128_digest

from dataplane_server.core.calls.columns import ColumnSpec
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import RepeatableCall, ReserveGroup

MAX_DIGEST_BYTES = 64
_NOT_COMPARED = {"request_id", "session_id", "caller", "node", "digest", "hashed"}
_OF_CLASS: dict[Any, set[str]] = {ReserveGroup: {"sample_ids"}}
"""Earlier clients gave a reservation up by repeating it without its rows, to learn its name."""


def fingerprint(call: RepeatableCall[Any]) -> bytes:
    """Bytes that are the same for repeated calls, in every process."""
    return getattr(call, "digest", b"") or xxh3_128_digest(msgpack.packb(_plain(call), default=_plain))


def check_digest(digest: bytes) -> None:
    """What a caller sends as a digest."""
    if len(digest) > MAX_DIGEST_BYTES:
        message = f"request_digest must have at most {MAX_DIGEST_BYTES} bytes, got {len(digest)}"
        raise Refusal(Reason.INVALID_REQUEST, message)


@cache
def _getter(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Gets what to compare of a call, or all of another record, then its class, so that a tuple always results."""
    left_out = _OF_CLASS.get(kind, set()) | (_NOT_COMPARED if issubclass(kind, RepeatableCall) else set())
    return attrgetter(*(field.name for field in dataclasses.fields(kind) if field.name not in left_out), "__class__")


def _plain(value: Any) -> Any:
    """What MessagePack does not know, as something that it does."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, ColumnSpec):  # without per_token: who repeats a put may not know what a field is
        shape, lengths = value.shape, value.lengths
        in_bytes = None if lengths is None else lengths.tobytes()
        return [value.name, [shape.kind, shape.dtype, shape.row_shape], in_bytes]
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)  # a class, which can be hashed whatever its instances are
        return list(_getter(kind)(value)[:-1])
    return str(value) if isinstance(value, int) else list(value)

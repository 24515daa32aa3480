"""Calls and outcomes as bytes, and calls back from bytes.

Values are msgpack, with three extension types: a set (its sorted elements), an array (element type, shape, bytes in C
order) and a record (class name, values of its fields). Sequences come back as tuples. Only calls and the records in
them can be decoded; the class name selects from a fixed table, so decoding runs no code of the file.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import numpy as np

from dataplane_server.core.calls import requests
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import Call
from dataplane_server.core.calls.values import Definition

_SET, _ARRAY, _RECORD = 1, 2, 3


def encode(value: object) -> bytes:
    """A call, an answer, a refusal, effects, or a container of these. TypeError for anything else."""
    return msgpack.packb(value, default=_extended)  # type: ignore[no-any-return]


def decode(data: bytes) -> Any:
    """A value that `encode` made of calls, limits and plain values. ValueError for anything else."""
    return msgpack.unpackb(data, ext_hook=_restored, use_list=False)


def _extended(value: Any) -> msgpack.ExtType:
    if isinstance(value, frozenset):
        return msgpack.ExtType(_SET, encode(sorted(value)))
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(_ARRAY, encode([value.dtype.str, value.shape, value.tobytes()]))
    if isinstance(value, Refusal):
        return _record(value, [value.reason.name, value.message, value.metadata])
    if dataclasses.is_dataclass(value):
        return _record(value, [getattr(value, field.name) for field in dataclasses.fields(value)])
    raise TypeError(f"cannot encode a value of type {type(value).__name__}")


def _record(value: object, fields: list[object]) -> msgpack.ExtType:
    return msgpack.ExtType(_RECORD, encode([type(value).__name__, *fields]))


def _restored(code: int, data: bytes) -> Any:
    parts = decode(data)
    if code == _SET:
        return frozenset(parts)
    if code == _ARRAY:
        dtype, shape, content = parts
        return np.frombuffer(content, dtype).reshape(shape)
    if code == _RECORD and parts[0] in _RECORDS:
        return _RECORDS[parts[0]](*parts[1:])
    raise ValueError(f"unknown record in a recording: {parts[0] if code == _RECORD else code!r}")


_CALLS = [kind for kind in vars(requests).values() if isinstance(kind, type) and issubclass(kind, Call)]
_RECORDS: dict[str, Any] = {kind.__name__: kind for kind in (*_CALLS, Definition, ColumnSpec, Shape, Limits)}

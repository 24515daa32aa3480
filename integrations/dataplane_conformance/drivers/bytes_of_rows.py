"""Rows as bytes, for systems that carry nothing else."""

from __future__ import annotations

import json

from dataplane_conformance.system import Row, Value


def packed(row: Row) -> bytes:
    """The row's values: a line of JSON with names, types and lengths, and their bytes."""
    head = [[field, value.dtype, len(value.data)] for field, value in row.values.items()]
    return json.dumps(head).encode() + b"\n" + b"".join(value.data for value in row.values.values())


def unpacked(data: bytes) -> dict[str, Value]:
    """The values of a packed row. Raises ValueError if these are no values."""
    head, _, body = data.partition(b"\n")
    values, at = {}, 0
    for field, dtype, size in json.loads(head):
        values[field], at = Value(dtype, body[at : at + size]), at + size
    return values

"""Frames of a stream, read and written without copying their values.

A frame is a PutSamplesRequest, a CommitClaimRequest or a ReadColumnsResponse. All three are one on the wire: a header
in field 1 and a Chunk in field 2, with its offset_bytes in field 1 and its data in field 2. The generated classes copy
the data on their way in and out; here the values are the last bytes of a frame, and a frame that was received lends
them as a view of the message.

`frame_prefix` writes what the generated classes write, byte for byte. `parse_frame` accepts what they accept, in any
order, with unknown fields, and with a header or a chunk in several pieces: the usual encoding is read in place, all
others by protobuf, at its price of some copies, if they have few parts. A header is handed on as bytes; its own class
parses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Union

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from rl_dataplane.v1.data_plane_pb2 import Chunk

# Field 1 of Chunk is a number, all other fields are bytes after their length.
_HEADER_FIELD, _CHUNK_FIELD = 1, 2
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
_HEADER, _CHUNK, _OFFSET, _DATA = b"\x0a", b"\x12", b"\x08", b"\x12"
_MAX_USUAL_VARINT_BYTES = 9  # 63 bits; what protobuf makes of longer ones is for protobuf to say

MAX_PARTS = 1 << 18
"""Most parts (fields, and entries of repeated fields) of a message, at all depths together: twice what a call may
name.
"""
_MAX_FRAME_PARTS = 1024

Nested = Mapping[int, Union["Nested", None]]
"""What is inside of the fields of a message, by number; see `check_parts`."""

_KEPT_BYTES = 16 << 20


class Frame(NamedTuple):
    """One frame."""

    header: bytes | None
    """The header, serialized; None for a frame without one."""
    offset: int
    """Bytes of values before the chunk; 0 for a frame without one."""
    chunk: memoryview | None
    """The chunk's bytes, read-only, a view that keeps the message; None for a frame without a chunk."""


def frame_prefix(header: bytes | None, offset: int, size: int) -> bytes:
    """What precedes the `size` bytes of values in a frame with a chunk at byte `offset` of its stream.

    header: the serialized header of a first frame. Prefix and values, joined, are the frame.
    """
    chunk = (_OFFSET + _varint(offset) if offset else b"") + (_DATA + _varint(size) if size else b"")
    head = b"" if header is None else _HEADER + _varint(len(header)) + header
    return head + _CHUNK + _varint(len(chunk) + size) + chunk


def parse_frame(data: bytes) -> Frame:
    """The parts of a frame. Raises ValueError when the bytes are no such message."""
    return _usual(data) or _any(data)


def keep_message_memory() -> None:
    """Let this process use the memory of messages again; either end of a stream calls it once.

    malloc returns large blocks to the system and takes fresh pages for the next ones, whose faults cost more than the
    copy that fills them. glibc learns better from the largest block that was freed: from then on it keeps up to twice
    its size. One untouched block teaches it that; other allocators are not affected.
    """
    bytearray(_KEPT_BYTES // 2)


def _usual(data: bytes) -> Frame | None:
    """The frame if its encoding is the usual one: the fields that differ from their defaults, in order."""
    view = memoryview(data)
    header, rest = _piece(view, _HEADER)
    chunk, rest = _piece(rest, _CHUNK)
    if rest:
        return None
    head = None if header is None else bytes(header)
    if chunk is None:
        return Frame(head, 0, None)
    offset, rest = _number(chunk, _OFFSET)
    values, rest = _piece(rest, _DATA)
    return None if rest else Frame(head, offset, chunk[:0] if values is None else values)


def _piece(view: memoryview, tag: bytes) -> tuple[memoryview | None, memoryview]:
    """The bytes of the field if it is next, and what follows; (None, view) if it is not, or ends too late."""
    if view[:1] != tag:
        return None, view
    size, start = _read_varint(view, 1)
    end = start + size
    return (view[start:end], view[end:]) if start and end <= len(view) else (None, view)


def _number(view: memoryview, tag: bytes) -> tuple[int, memoryview]:
    """The number in the field if it is next, and what follows; (0, view) if it is not."""
    if view[:1] != tag:
        return 0, view
    value, end = _read_varint(view, 1)
    return (value, view[end:]) if end else (0, view)


def _read_varint(view: memoryview, start: int) -> tuple[int, int]:
    """The number at `start` and the position after it; (0, 0) if it is cut off or longer than usual."""
    value = 0
    for position, byte in enumerate(view[start : start + _MAX_USUAL_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, start + position + 1
    return 0, 0


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _any(data: bytes) -> Frame:
    """The frame by protobuf: the pieces of a message merge as their encodings do when they are joined."""
    check_parts(data, {}, _MAX_FRAME_PARTS)  # each becomes an object
    try:
        header, chunk = _joined(data, _HEADER_FIELD), _joined(data, _CHUNK_FIELD)
        values = Chunk.FromString(chunk or b"")
    except DecodeError as error:
        raise ValueError(f"not a frame: {error}") from None
    return Frame(header, values.offset_bytes, None if chunk is None else memoryview(values.data))


def _joined(data: bytes, number: int) -> bytes | None:
    """All pieces of a field of type message, joined; None when there is none."""
    pieces = [piece for field, wire_type, piece in _fields(data) if (field, wire_type) == (number, _LENGTH_DELIMITED)]
    for piece in pieces:
        Empty.FromString(piece)  # what is cut off in one piece must not go on in the next
    return b"".join(pieces) if pieces else None


def _fields(data: bytes) -> list[tuple[int, int, Any]]:
    unknown = UnknownFieldSet(Empty.FromString(data))  # to a message that knows no field they all are
    fields = (unknown[position] for position in range(len(unknown)))
    return [(field.field_number, field.wire_type, field.data) for field in fields]


class TooManyPartsError(ValueError):
    """A message has more parts than any that makes sense."""


def check_parts(data: bytes, nested: Nested, most: int = MAX_PARTS) -> None:
    """Raise TooManyPartsError if a message has more than `most` parts. nested: its fields that are messages, by number,
    each with its own, whose parts count too; None for packed numbers, of which each byte counts. Looks at no more than
    `most` parts. What is no message is left for its parser to refuse.
    """
    if _parts_left(data, 0, len(data), nested, most) < 0:
        raise TooManyPartsError(f"more than {most} parts (max_parts)")


def _parts_left(data: bytes, position: int, end: int, nested: Nested, left: int) -> int:
    """How many parts may follow those between `position` and `end`."""
    try:
        while position < end and left >= 0:
            left -= 1
            key = data[position]
            position += 1
            if key >= 0x80:
                key, position = _long_varint(data, position, key)
            wire_type = key & 7
            if wire_type == _LENGTH_DELIMITED:
                size = data[position]
                position += 1
                if size >= 0x80:
                    size, position = _long_varint(data, position, size)
                if nested and key >> 3 in nested:
                    inner = nested[key >> 3]
                    if inner is None:
                        left -= size
                    else:
                        left = _parts_left(data, position, min(position + size, end), inner, left)
                position += size
            elif wire_type == _VARINT:
                if data[position] >= 0x80:
                    position = _long_varint(data, position + 1, 0x80)[1]
                else:
                    position += 1
            else:
                position += _FIXED_BYTES.get(wire_type, 0)
    except IndexError:  # cut off, or a number that is too long
        pass
    return left


def _long_varint(data: bytes, position: int, first: int) -> tuple[int, int]:
    """The number after whose first byte the position is, and the position after it. IndexError if it is no number."""
    value = first & 0x7F
    for shift in range(7, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError

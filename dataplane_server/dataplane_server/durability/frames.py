"""A frame is a payload behind a mark, its size and a CRC-32, so that readers know a complete payload from other bytes.

Size and CRC are 4 bytes each, little-endian. The CRC covers the bytes of the size and the payload. Four bytes of zero
in the place of the mark are unused space.
"""

from __future__ import annotations

import struct
import zlib

MARK = b"\xd1REC"
LARGEST = 1 << 30  # bytes of a payload
HEAD = struct.Struct("<4sII")


def frame_of(payload: bytes) -> bytes:
    """The frame of a payload. ValueError if it is empty or larger than LARGEST."""
    if not 0 < len(payload) <= LARGEST:
        raise ValueError(f"a payload of {len(payload)} bytes: a frame holds 1 to {LARGEST}")
    return HEAD.pack(MARK, len(payload), _crc(len(payload), payload)) + payload


def frame_bytes(data: bytes) -> int:
    """How long the frame at the beginning of the data is by its size. 0 if none begins there."""
    if len(data) < HEAD.size:
        return 0
    mark, size, _ = HEAD.unpack_from(data)
    return HEAD.size + size if mark == MARK else 0


def payloads_of(data: bytes, most: int) -> tuple[list[bytes], int]:
    """The payloads of the valid frames at the beginning of the data, at most `most`, and the length of the frames."""
    payloads: list[bytes] = []
    at, last = 0, len(data) - HEAD.size
    while at < last and len(payloads) < most:
        mark, size, crc = HEAD.unpack_from(data, at)
        begin = at + HEAD.size
        payload = data[begin : begin + size]
        if mark != MARK or not size or len(payload) < size or _crc(size, payload) != crc:
            break
        payloads.append(payload)
        at = begin + size
    return payloads, at


def find_frame(data: bytes) -> int | None:
    """Where the first valid frame begins, at any byte of the data."""
    at = data.find(MARK)
    while at >= 0 and not payloads_of(data[at : at + frame_bytes(data[at : at + HEAD.size])], 1)[0]:
        at = data.find(MARK, at + 1)
    return None if at < 0 else at


def _crc(size: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(size.to_bytes(4, "little")))

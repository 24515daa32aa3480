"""What the bytes of an input mean to targets that need more than bytes.

Any bytes mean something, so that no input of a fuzzer is lost. *Pieces* are several messages or files in one input:
each has its length before it (2 bytes, little-endian), and the last one ends where the input ends. *Damage* is a list
of edits of bytes that are made anew by every run, because their format changes from version to version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

_EDIT = struct.Struct("<BHB")  # what, where, and how many bytes
OVERWRITE, INSERT, DELETE, CUT, FLIP = range(5)


def pieces(data: bytes) -> list[bytes]:
    """The pieces of an input."""
    found = []
    while len(data) >= 2:
        end = 2 + int.from_bytes(data[:2], "little")
        found.append(data[2:end])
        data = data[end:]
    return found


def joined(parts: Sequence[bytes]) -> bytes:
    """The input with these pieces, each of less than 64 KiB."""
    return b"".join(len(part).to_bytes(2, "little") + part for part in parts)


def edit(what: int, where: int, size: int = 0, content: bytes = b"") -> bytes:
    """An edit at a byte. size: of what is deleted or flipped. content: what is inserted or overwrites others."""
    return _EDIT.pack(what, where, len(content) or size) + content


def damaged(whole: bytes, edits: bytes) -> bytes:
    """The bytes after all edits, one after the other."""
    found = bytearray(whole)
    for what, where, size, content in _edits(edits):
        begin = where % (len(found) + 1)
        if what == OVERWRITE:
            found[begin : begin + size] = content
        elif what == INSERT:
            found[begin:begin] = content
        elif what == DELETE:
            del found[begin : begin + size]
        elif what == CUT:
            del found[begin:]
        else:
            found[begin : begin + size] = bytes(byte ^ 0x10 for byte in found[begin : begin + size])
    return bytes(found)


def _edits(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    at = 0
    while at + _EDIT.size <= len(data):
        what, where, size = _EDIT.unpack_from(data, at)
        at += _EDIT.size
        content = data[at : at + size] if what % 5 in (OVERWRITE, INSERT) else b""
        at += len(content)
        yield what % 5, where, size, content

"""One end of an HTTP/2 connection that speaks to gRPC and heeds nothing but the windows that it is given."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections import defaultdict

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, _RESET, SETTINGS_KIND, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9
_END_HEADERS = 4
_FIRST_WINDOW = 4
_PATIENCE_S = 1.0
_HEAD = struct.Struct(">BHBBI")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def request(path: str, authority: str = "x", **metadata: bytes) -> bytes:
    """The headers of a gRPC call, as HPACK writes them without its tables and without Huffman's code."""

    def text(what: str | bytes) -> bytes:
        return bytes([len(what)]) + (what if isinstance(what, bytes) else what.encode())

    kind = b"\x0f\x10" + text("application/grpc")
    more = {"te": b"trailers", **metadata}
    pairs = [b"\x00" + text(name) + text(value) for name, value in more.items()]
    return b"\x83\x86\x04" + text(path) + b"\x01" + text(authority) + kind + b"".join(pairs)


OPENING = _PREFACE + frame(SETTINGS_KIND, 0, 0, b"")
"""What a client says first."""
PINGS = frame(_PING, 0, 0, bytes(8)) * 10_000
SETTINGS = frame(SETTINGS_KIND, 0, 0, b"\0\x03\0\0\0\x64") * 10_000


def resets(path: str, calls: int = 1000) -> bytes:
    """Calls that are cancelled as soon as they have begun."""
    cancel = struct.pack(">I", 8)
    return b"".join(
        frame(HEADERS, _END_HEADERS, stream, request(path)) + frame(_RESET, 0, stream, cancel)
        for stream in range(1, 2 * calls, 2)
    )


def endless_headers(path: str, frames: int = 1000) -> bytes:
    """Headers that are continued without an end."""
    more = frame(_CONTINUATION, 0, 1, b"\x00\x01x\x7f\x80\x7e" + bytes(16_000))
    return frame(HEADERS, 0, 1, request(path)) + more * frames


class Http2Peer:
    """A connection. Its socket raises TimeoutError when the server takes nothing for a second."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(_PATIENCE_S)
        self.socket.connect(path)
        self.socket.sendall(OPENING)
        self._first_window = 65_535
        self._connection_window = 65_535
        self._updates: dict[int, int] = defaultdict(int)  # of a stream's window, less what was sent
        self._received = b""
        self._streams = itertools.count(1, 2)

    def begin(self, path: str, authority: str = "x", **metadata: bytes) -> int:
        stream = next(self._streams)
        self.socket.sendall(frame(HEADERS, _END_HEADERS, stream, request(path, authority, **metadata)))
        return stream

    def send_as_allowed(self, stream: int, data: memoryview) -> int:
        """Send as much as the windows allow now. Returns the bytes sent."""
        self._read_windows()
        size = min(len(data), self._connection_window, self._first_window + self._updates[stream], 16_384)
        if size > 0:
            self.socket.sendall(frame(DATA, 0, stream, bytes(data[:size])))
            self._connection_window -= size
            self._updates[stream] -= size
        return max(size, 0)

    def _read_windows(self) -> None:
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self._received += self.socket.recv(65_536)
        self.socket.settimeout(_PATIENCE_S)
        while len(self._received) >= _HEAD.size:
            high, low, kind, _, stream = _HEAD.unpack_from(self._received)
            end = _HEAD.size + (high << 16 | low)
            if len(self._received) < end:
                return
            payload, self._received = self._received[_HEAD.size : end], self._received[end:]
            if kind == _WINDOW_UPDATE and stream:
                self._updates[stream] += int.from_bytes(payload, "big")
            elif kind == _WINDOW_UPDATE:
                self._connection_window += int.from_bytes(payload, "big")
            elif kind == SETTINGS_KIND:
                given = dict(struct.iter_unpack(">HI", payload))
                self._first_window = given.get(_FIRST_WINDOW, self._first_window)

    def close(self) -> None:
        self.socket.close()

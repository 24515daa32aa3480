"""Cuts what a stream of local.proto delivers into whole frames, each with its head.

A small frame mostly arrives alone and whole: then it is passed on as it came, and nothing is copied.
"""

from __future__ import annotations

from rl_dataplane.v1.local_frames import HEAD


class FrameBuffer:
    """The bytes that have arrived and were not taken."""

    def __init__(self) -> None:
        self._received: bytes | bytearray = b""

    def __len__(self) -> int:
        return len(self._received)

    def add(self, data: bytes) -> None:
        if not self._received:
            self._received = data
            return
        if isinstance(self._received, bytes):
            self._received = bytearray(self._received)
        self._received += data

    def take(self, most_body_bytes: int) -> bytes | None:
        """The next frame, or None if it is not whole yet. ValueError if its body has more bytes than it may."""
        received = self._received
        if len(received) < HEAD.size:
            return None
        body_bytes, _ = HEAD.unpack_from(received)
        if body_bytes > most_body_bytes:
            raise ValueError(f"the body of a frame has {body_bytes} bytes; the limit is {most_body_bytes}")
        size = HEAD.size + body_bytes
        if len(received) < size:
            return None
        if len(received) == size:
            self._received = b""
            return bytes(received)
        rest = self._received = received if isinstance(received, bytearray) else bytearray(received)
        frame = bytes(memoryview(rest)[:size])
        del rest[:size]
        return frame

    def clear(self) -> None:
        self._received = b""

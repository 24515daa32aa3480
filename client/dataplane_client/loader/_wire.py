"""What a loader and its worker processes tell each other, over a pair of sockets that keep message boundaries.

A message is one datagram, which comes whole or not at all: a process that is killed or stopped while it sends leaves
nobody waiting for the rest. Its first byte says what it is. Whatever is long (a batch, its meta) lies in a memory file
whose descriptor the datagram carries. The end of the stream is the end of the process at its other end.
"""

from __future__ import annotations

import builtins
import contextlib
import socket
import sys
from typing import Any, Final

import msgpack

from dataplane_client import errors

SETTINGS: Final = b"S"
"""To a worker, first: a msgpack map of the loader's settings."""
PERMIT: Final = b"P"
"""To a worker: claim so many batches more (msgpack int)."""
TAKEN: Final = b"T"
"""To a worker: the claim of this id is yours no longer."""
HELLO: Final = b"H"
"""From a worker, first: its process id (msgpack int)."""
BATCH: Final = b"B"
"""From a worker: a batch, with its descriptor."""
END: Final = b"E"
"""From a worker, last: there are no more rows."""
FAILED: Final = b"F"
"""From a worker, last: an error (msgpack)."""

_MOST_BYTES: Final = 1 << 16
_MOST_LETTERS: Final = 8192
_FD_BYTES: Final = 4
_FD_SPACE: Final = socket.CMSG_SPACE(_FD_BYTES)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(peer: socket.socket, kind: bytes, body: bytes = b"", fd: int | None = None) -> None:
    """Send a message. Raises OSError when the other end is gone."""
    socket.send_fds(peer, [kind + body], [] if fd is None else [fd])


def receive(peer: socket.socket, flags: int = 0) -> tuple[bytes, bytes, int | None] | None:
    """Kind, body and descriptor of the next message; None when the other end is gone. Raises BlockingIOError when there
    is none and flags say not to wait.
    """
    for _ in range(2):
        # When the other end went away without having read everything, one call fails before the rest of what it sent.
        with contextlib.suppress(ConnectionResetError):
            data, carried, _, _ = peer.recvmsg(_MOST_BYTES, _FD_SPACE, flags | socket.MSG_CMSG_CLOEXEC)
            fd = int.from_bytes(carried[0][2][:_FD_BYTES], sys.byteorder) if carried else None
            return (data[:1], data[1:], fd) if data else None
    return None


def error_message(error: BaseException) -> bytes:
    """An error as plain values."""
    known = error if isinstance(error, errors.DataPlaneError) else None
    message = str(error)[:_MOST_LETTERS]
    reason, details = ("", {}) if known is None else (known.reason, known.details)
    packed: bytes = msgpack.packb([type(error).__name__, message, reason, details])
    return packed


def error_of_message(body: bytes) -> Exception:
    """The error that made the message: of its own type if that is one of ours or a plain one, else a RuntimeError."""
    name, message, reason, details = msgpack.unpackb(body)
    ours: Any = getattr(errors, name, None)
    if isinstance(ours, type) and issubclass(ours, errors.DataPlaneError):
        return ours(message, reason=reason, details=details)
    if name in ("ValueError", "TypeError"):
        plain: Exception = getattr(builtins, name)(message)
        return plain
    return RuntimeError(f"{name}: {message}")

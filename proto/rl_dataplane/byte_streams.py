"""Bytes over a socket, from and to the places where they lie, without copies in between.

The kernel copies while Python's lock is free, so this is work for threads. Each wait for the peer ends with the
socket's timeout, and all of them at `until`, a time of time.monotonic() or a Pace: then TimeoutError is raised.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable
from itertools import islice

_MOST_PIECES = 1024  # that the kernel takes at once
_PROBES = 3


class Pace:
    """How slowly bytes may move: at least bytes_s * within_s of them in within_s seconds, again and again.

    ends: when those must have moved that count now, a time of time.monotonic().
    """

    def __init__(self, bytes_s: float, within_s: float) -> None:
        self._least = bytes_s * within_s
        self._within_s = within_s
        self._moved = 0
        self.ends = time.monotonic() + within_s

    def note(self, count: int) -> None:
        self._moved += count
        if self._moved >= self._least:
            self._moved, self.ends = 0, time.monotonic() + self._within_s


def prepare_line(line: socket.socket, within_s: int = 35) -> None:
    """Have a TCP connection send small frames at once, and notice within this time that the peer's host is gone."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause_s = max(1, within_s // 7)
    options = {
        "TCP_KEEPIDLE": within_s - _PROBES * pause_s,
        "TCP_KEEPINTVL": pause_s,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": within_s * 1000,
    }
    for option, value in options.items():
        if hasattr(socket, option):  # not everywhere
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def send_pieces(line: socket.socket, pieces: Iterable[memoryview], until: float | Pace = math.inf) -> None:
    """Send pieces, one after another. OSError."""
    _move(line, pieces, line.sendmsg, until)


def receive_pieces(line: socket.socket, pieces: Iterable[memoryview], until: float | Pace = math.inf) -> None:
    """Fill pieces, one after another. OSError; EOFError if the stream ends before."""

    def receive(into: list[memoryview]) -> int:
        count = line.recvmsg_into(into)[0]
        if not count:
            raise EOFError("the connection ended")
        return count

    _move(line, pieces, receive, until)


def _move(
    line: socket.socket, pieces: Iterable[memoryview], move: Callable[[list[memoryview]], int], until: float | Pace
) -> None:
    """Move pieces, many at once. move: says how many bytes of these it has moved."""
    some = (piece for piece in pieces if piece.nbytes)
    stall_s = line.gettimeout()
    while batch := list(islice(some, _MOST_PIECES)):
        while batch:
            ends = until.ends if isinstance(until, Pace) else until
            if ends < math.inf:
                line.settimeout(_left_s(ends, stall_s))
            count = move(batch)
            if isinstance(until, Pace):
                until.note(count)
            batch = _after(batch, count)
    line.settimeout(stall_s)  # a stream that failed has ended


def _left_s(until: float, stall_s: float | None) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the bytes take too long")
    return left_s if stall_s is None else min(left_s, stall_s)


def _after(pieces: list[memoryview], count: int) -> list[memoryview]:
    """What is left of pieces after their first bytes."""
    for number, piece in enumerate(pieces):
        if count < piece.nbytes:
            return [piece[count:], *pieces[number + 1 :]]
        count -= piece.nbytes
    return []

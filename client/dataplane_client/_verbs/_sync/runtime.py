"""The parts in which the asynchronous client and its blocking twin differ by more than async and await."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

import grpc

from dataplane_client._common.tracebacks import short_traceback
from rl_dataplane.v1.local_frames import HEAD, response_head

P = ParamSpec("P")
T = TypeVar("T")

CALL_ENDED = (grpc.RpcError, ValueError)
"""The exceptions of a failed call. grpc raises ValueError when another thread has closed the channel."""

Work = Callable[[socket.socket, float], None]
"""Sends or receives over a connection, until a time of time.monotonic()."""

_RECEIVE_BYTES = 1 << 16
_SHORTEST_S = 1e-3  # a timeout of 0 would make a socket non-blocking


def sleep(seconds: float) -> None:
    time.sleep(seconds)


class NoThreadError(TimeoutError):
    """Never raised here."""


def run_in_thread(work: Callable[[], T], *, timeout_s: float, to_its_end: bool = True) -> T:
    """Run work in the calling thread, which may block."""
    return work()


def result_of(future: Future[T], timeout_s: float) -> T:
    """The result of a future that another thread completes. Raises TimeoutError."""
    if not concurrent.futures.wait([future], timeout_s).done:
        raise TimeoutError
    return future.result()


class Sending:
    """Work that its callers share; here it is over when `run` is called."""

    def run(self, work: object) -> None:
        return

    def join(self) -> None:
        return


def opens(call: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that opens something. Only the asynchronous twin does more than shorten tracebacks."""
    return short_traceback(call)


class LocalConnection:
    """A connection to a local socket, for one call at a time."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._rest = b""  # what came behind the last response
        weakref.finalize(self, peer.close)  # for clients that are never closed

    @classmethod
    def open(cls, address: str, timeout_s: float) -> LocalConnection:
        """Raises TimeoutError or OSError."""
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.settimeout(max(timeout_s, _SHORTEST_S))
            peer.connect(address)
        except BaseException:
            peer.close()
            raise
        return cls(peer)

    def exchange(self, frame: bytes, timeout_s: float, after: Work | None = None) -> tuple[int, bytes]:
        """Send a request, and what follows it, and wait for its response: LocalOutcome and body. Raises TimeoutError or
        OSError, or what `after` raises.
        """
        until = time.monotonic() + timeout_s
        self._peer.settimeout(max(timeout_s, _SHORTEST_S))
        self._peer.sendall(frame)
        if after is not None:
            after(self._peer, until)
        received = bytearray()
        while len(received) < HEAD.size:
            received += self._receive(until)
        size, outcome = response_head(bytes(received[: HEAD.size]))
        while len(received) < HEAD.size + size:
            received += self._receive(until)
        end = HEAD.size + size
        self._rest = bytes(received[end:])
        return outcome, bytes(received[HEAD.size : end])

    def use(self, work: Work, timeout_s: float) -> None:
        """Have work use the socket."""
        self._peer.settimeout(max(timeout_s, _SHORTEST_S))
        work(self._peer, time.monotonic() + timeout_s)

    def take_rest(self) -> bytes:
        """Remove and return what came behind the last response, and is no response."""
        rest, self._rest = self._rest, b""
        return rest

    def _receive(self, until: float) -> bytes:
        self._peer.settimeout(max(until - time.monotonic(), _SHORTEST_S))
        data = self._peer.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def interrupt(self) -> None:
        """End the exchange under way with a ConnectionError; its caller closes the connection."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, which cancels a call under way on the server. No other thread or task may use it."""
        self._peer.close()

"""What differs between the asynchronous client and its blocking twin beyond the words async and await."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import grpc

from dataplane_client._channel import CHANNEL_OPTIONS, checked_target
from dataplane_client._local_frames import response_head
from rl_dataplane.v1.frames import keep_message_memory
from rl_dataplane.v1.local_frames import HEAD

T = TypeVar("T")

CALL_ENDED = (grpc.RpcError, ValueError)
"""What a call that fails raises. grpc says ValueError when another thread has closed the channel."""

_RECEIVE_BYTES = 1 << 16


def open_channel(target: str) -> grpc.Channel:
    """A channel without encryption; nothing is sent before the first call."""
    keep_message_memory()
    return grpc.insecure_channel(checked_target(target), options=CHANNEL_OPTIONS)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def apart(work: Callable[[], T]) -> T:
    """Do work; the calling thread is as good as any."""
    return work()


def result_of(future: Future[T], timeout_s: float) -> T:
    """What another thread makes of a future. Raises TimeoutError."""
    if not concurrent.futures.wait([future], timeout_s).done:
        raise TimeoutError
    return future.result()


class LocalConnection:
    """A connection to a local socket, for one call at a time."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        weakref.finalize(self, peer.close)  # for clients that nobody closes

    @classmethod
    def open(cls, address: str, timeout_s: float) -> LocalConnection:
        """Raises TimeoutError or OSError."""
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.settimeout(_positive(timeout_s))
            peer.connect(address)
        except BaseException:
            peer.close()
            raise
        return cls(peer)

    def exchange(self, frame: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Send a request and wait for its response: LocalOutcome and body. Raises TimeoutError or OSError."""
        until = time.monotonic() + timeout_s
        self._peer.settimeout(_positive(timeout_s))
        self._peer.sendall(frame)
        received = bytearray()
        while len(received) < HEAD.size:
            received += self._received(until)
        size, outcome = response_head(bytes(received[: HEAD.size]))
        while len(received) < HEAD.size + size:
            received += self._received(until)
        return outcome, bytes(received[HEAD.size :])

    def _received(self, until: float) -> bytes:
        self._peer.settimeout(_positive(until - time.monotonic()))
        data = self._peer.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed it")
        return data

    def interrupt(self) -> None:
        """Whoever waits for a response gets a ConnectionError, and then closes it."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; the call under way is cancelled on the server. Only for who has it for itself."""
        self._peer.close()


def _positive(timeout_s: float) -> float:
    """A timeout for a socket, to which 0 would mean not to wait at all, rather than to give up."""
    return max(timeout_s, 1e-3)

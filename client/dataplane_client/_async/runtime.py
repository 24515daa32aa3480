"""What differs between the asynchronous client and its blocking twin beyond the words async and await."""

from __future__ import annotations

import asyncio
import contextlib
import socket
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

CALL_ENDED = (grpc.RpcError, asyncio.CancelledError)
"""What a call that fails raises. grpc.aio cancels whoever waits for a call when the channel is closed."""

_RECEIVE_BYTES = 1 << 16


def open_channel(target: str) -> grpc.aio.Channel:
    """A channel without encryption; nothing is sent before the first call."""
    keep_message_memory()
    return grpc.aio.insecure_channel(checked_target(target), options=CHANNEL_OPTIONS)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def apart(work: Callable[[], T]) -> T:
    """Do work on a thread. Returns or raises only when the work is done, also when cancelled: until then it may write
    to memory that is lent.
    """
    running = asyncio.get_running_loop().run_in_executor(None, work)  # no task, which a loop that ends would cancel
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:  # noqa: PERF203  # once, as a rule
            cancelled = error
    if cancelled is not None:
        running.exception()  # it was looked at
        raise cancelled
    return running.result()


async def result_of(future: Future[T], timeout_s: float) -> T:
    """What another thread makes of a future. Raises TimeoutError; the future itself is not cancelled by anything."""
    waiting = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait([waiting], timeout=timeout_s)
        if not done:
            raise TimeoutError
        return waiting.result()
    finally:
        waiting.cancel()


class LocalConnection:
    """A connection to a local socket, for one call at a time."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        weakref.finalize(self, peer.close)  # for clients that nobody closes

    @classmethod
    async def open(cls, address: str, timeout_s: float) -> LocalConnection:
        """Raises OSError, at once: nothing waits for such a connection. timeout_s: the twin's."""
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.setblocking(False)
            peer.connect(address)  # asyncio would take a full backlog for a connection
        except BaseException:
            peer.close()
            raise
        return cls(peer)

    async def exchange(self, frame: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Send a request and wait for its response: LocalOutcome and body. Raises TimeoutError or OSError."""
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            self.interrupt()

        timer = asyncio.get_running_loop().call_later(timeout_s, expire)
        try:  # not asyncio.wait_for, which until Python 3.12 may swallow a cancellation
            answer = await self._exchanged(frame)
        except OSError:
            if not expired:
                raise
        finally:
            timer.cancel()
        if expired:
            raise TimeoutError
        return answer

    async def _exchanged(self, frame: bytes) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._peer, frame)
        received = bytearray()
        while len(received) < HEAD.size:
            received += await self._received(loop)
        size, outcome = response_head(bytes(received[: HEAD.size]))
        while len(received) < HEAD.size + size:
            received += await self._received(loop)
        return outcome, bytes(received[HEAD.size :])

    async def _received(self, loop: asyncio.AbstractEventLoop) -> bytes:
        data = await loop.sock_recv(self._peer, _RECEIVE_BYTES)
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

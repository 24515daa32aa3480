"""The parts in which the asynchronous client and its blocking twin differ by more than async and await."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import time
import weakref
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import grpc

from dataplane_client._common.tracebacks import short_traceback
from rl_dataplane.v1.local_frames import HEAD, response_head

P = ParamSpec("P")
T = TypeVar("T")
_Opened = TypeVar("_Opened", bound=AbstractAsyncContextManager[Any, Any])

CALL_ENDED = (grpc.RpcError, asyncio.CancelledError)
"""The exceptions of a failed call. grpc.aio cancels the tasks that wait for a call when the channel is closed."""

Work = Callable[[socket.socket, float], None]
"""Sends or receives over a connection, until a time of time.monotonic()."""

_RECEIVE_BYTES = 1 << 16
_MOST_THREADS = 32


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Of this package: all threads of a loop's executor may wait for calls of that loop."""
    return ThreadPoolExecutor(_MOST_THREADS, "dataplane-async")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads


class NoThreadError(TimeoutError):
    """All threads were at work until it was too late to begin."""


async def run_in_thread(
    work: Callable[[], T],
    interrupt: Callable[[], None] = lambda: None,
    *,
    timeout_s: float | None = None,
    to_its_end: bool = True,
) -> T:
    """Run work in a thread. Drops it when cancelled before it has begun, and raises NoThreadError if that takes longer
    than timeout_s: from then on, the work keeps its deadline itself. Waits for its end when cancelled later, because it
    may still write to reserved memory. interrupt: called then, to make it end. to_its_end: False for work that is not
    waited for then.
    """
    running = _threads().submit(work)
    waiting = asyncio.wrap_future(running)  # no task, which a loop that ends would cancel
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            done, _ = await asyncio.wait([waiting], timeout=timeout_s)
            if not done and running.cancel():
                raise NoThreadError("no thread was free before the deadline")
        except asyncio.CancelledError as error:
            if running.cancel() or not to_its_end:
                waiting.cancel()  # otherwise asyncio logs that its error was never retrieved
                raise
            cancelled = error
            interrupt()
        timeout_s = None
    if cancelled is not None:
        waiting.exception()  # marks it as retrieved
        raise cancelled
    return waiting.result()


async def result_of(future: Future[T], timeout_s: float) -> T:
    """The result of a future that another thread completes. Raises TimeoutError; never cancels the future."""
    waiting = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait([waiting], timeout=timeout_s)
        if not done:
            raise TimeoutError
        return waiting.result()
    finally:
        waiting.cancel()


class Sending:
    """Work that its callers share: it goes on when the one that began it is cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[object]] = set()

    async def run(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def join(self) -> None:
        """Wait for the end of all work."""
        if self._tasks:
            await asyncio.wait(self._tasks)


class Opening(Coroutine[Any, Any, _Opened]):
    """A call that opens something. `await` it for what it opens, or enter it with `async with`, which closes that at
    its end.
    """

    _opened: _Opened

    def __init__(self, call: Coroutine[Any, Any, _Opened]) -> None:
        self._call = call
        self.__qualname__ = getattr(call, "__qualname__", "")  # shown by tasks

    def __await__(self) -> Generator[Any, None, _Opened]:
        return self._call.__await__()

    async def __aenter__(self) -> _Opened:
        self._opened = await self._call
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # what a caller does who forgot `await`; a type checker knows that it is wrong

        def __getattr__(self, name):
            raise AttributeError(f"{self._what} has no {name!r}: await it, or enter it with `async with`")

        def __enter__(self):
            raise TypeError(f"{self._what} cannot be entered with `with`: enter it with `async with`")

        def __exit__(self, *_):
            """Never called; `with` looks for it first."""

    @property
    def _what(self) -> str:
        verb = self.__dict__.get("__qualname__", "").rpartition(".")[2]
        return f"the call of {verb} has not been awaited, and"

    # As of a coroutine, so that asyncio.run, create_task and gather take it.

    def send(self, value: Any) -> Any:
        return self._call.send(value)

    def throw(self, *error: Any) -> Any:
        return self._call.throw(*error)

    def close(self) -> None:
        self._call.close()


def opens(call: Callable[P, Coroutine[Any, Any, _Opened]]) -> Callable[P, Opening[_Opened]]:
    """Decorate a coroutine function that opens something: callers may await it or enter it with `async with`."""
    shortened = short_traceback(call)

    @functools.wraps(call)
    def opening(*args: P.args, **kwargs: P.kwargs) -> Opening[_Opened]:
        return Opening(shortened(*args, **kwargs))

    return opening


class LocalConnection:
    """A connection to a local socket, for one call at a time."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._rest = b""  # what came behind the last response
        peer.setblocking(False)
        weakref.finalize(self, peer.close)  # for clients that are never closed

    @classmethod
    async def open(cls, address: str, timeout_s: float) -> LocalConnection:
        """Raises OSError. Never waits; only the blocking twin uses timeout_s."""
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.setblocking(False)
            peer.connect(address)  # asyncio takes a full backlog for a connection
        except BaseException:
            peer.close()
            raise
        return cls(peer)

    async def exchange(self, frame: bytes, timeout_s: float, after: Work | None = None) -> tuple[int, bytes]:
        """Send a request, and what follows it, and wait for its response: LocalOutcome and body. Raises TimeoutError or
        OSError, or what `after` raises.
        """
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            self.interrupt()

        timer = asyncio.get_running_loop().call_later(timeout_s, expire)
        try:  # not asyncio.wait_for, which until Python 3.12 may swallow a cancellation
            answer = await self._exchange(frame, timeout_s, after)
        except OSError:
            if not expired:
                raise
        finally:
            timer.cancel()
        if expired:
            raise TimeoutError
        return answer

    async def _exchange(self, frame: bytes, timeout_s: float, after: Work | None) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._peer, frame)
        if after is not None:
            await self.use(after, timeout_s)
        received = bytearray()
        while len(received) < HEAD.size:
            received += await self._receive(loop)
        size, outcome = response_head(bytes(received[: HEAD.size]))
        while len(received) < HEAD.size + size:
            received += await self._receive(loop)
        end = HEAD.size + size
        self._rest = bytes(received[end:])
        return outcome, bytes(received[HEAD.size : end])

    async def use(self, work: Work, timeout_s: float) -> None:
        """Have work use the socket, in a thread. If cancelled, interrupts it and waits for its end. Raises what work
        raises, or TimeoutError.
        """
        line = self._peer.dup()
        line.settimeout(timeout_s)
        moves = functools.partial(work, line, time.monotonic() + timeout_s)
        try:
            await run_in_thread(moves, self.interrupt, timeout_s=timeout_s)
        finally:
            line.close()

    def take_rest(self) -> bytes:
        """Remove and return what came behind the last response, and is no response."""
        rest, self._rest = self._rest, b""
        return rest

    async def _receive(self, loop: asyncio.AbstractEventLoop) -> bytes:
        data = await loop.sock_recv(self._peer, _RECEIVE_BYTES)
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

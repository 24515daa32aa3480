"""The TCP port at which a node gives bytes to other nodes, of its arena or of a mirror; they ask by `byte_lines`.

The kernel copies from this arena to the network, and on the other node from there into that arena. Ray's object store
would copy them four times more. A line, that is a connection, begins with the port's secret, and then carries a
request at a time: the number of the node whose bytes are asked for, and runs; the answer is a byte (Given) and, after
OK, the bytes of the runs, one after another. Bytes are not encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import partial

import numpy as np

from dataplane_server.accepting import accepting
from dataplane_server.arena_streams import send_runs
from dataplane_server.cluster.messages import BytePlace
from dataplane_server.cluster.node.arena_bytes import are_inside
from dataplane_server.core.calls.values import Runs
from dataplane_server.storage.arena import Arena, pieces

REQUEST = struct.Struct("<II")
"""The number of the node, and how many runs follow: all offsets, then all sizes, as little-endian int64."""
_SECRET_BYTES = 16
_MOST_RUNS = 1 << 20
STALL_S = 30.0
"""A line is closed if nothing can be sent or received for so long in the middle of a request or an answer."""
_GREETING_S = 5.0
_MOST_LINES = 4096
_THREADS = 4
_AT_ONCE_BYTES = 64 << 10
"""Sent by the event loop; more is sent by a thread."""


class Given(IntEnum):
    """OTHER_NODE: no arena here is, or not yet, known as that node's. OUTSIDE: a run is not within the arena."""

    OK = 0
    OTHER_NODE = 1
    OUTSIDE = 2


class BytePort:
    """`listen`, later `close` once. arena_of: what is here of a node, by its number, or None."""

    def __init__(self, arena_of: Callable[[int], Arena | None]) -> None:
        self._arena_of = arena_of
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._threads = ThreadPoolExecutor(_THREADS, "byte-port")
        self._lines: dict[asyncio.Task[None], socket.socket] = {}
        self._accepting: asyncio.Task[None] | None = None

    def listen(self, host: str) -> BytePlace:
        """Listen at a port that the system chooses. OSError."""
        listener = socket.create_server((host, 0), backlog=1024)
        listener.setblocking(False)
        self._accepting = accepting(listener, "bytes", self._serve)
        return BytePlace(host, int(listener.getsockname()[1]), self._secret)

    async def _serve(self, line: socket.socket) -> None:
        if len(self._lines) >= _MOST_LINES:
            line.close()
            return
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setblocking(False)
        task = asyncio.create_task(self._answer_all(line))
        self._lines[task] = line
        task.add_done_callback(self._lines.pop)

    async def _answer_all(self, line: socket.socket) -> None:
        """Answer the requests of a line until its other end closes it."""
        with line:
            try:
                greeting = await asyncio.wait_for(_exactly(line, _SECRET_BYTES), _GREETING_S)
                while hmac.compare_digest(greeting, self._secret):
                    number, count = REQUEST.unpack(await _exactly(line, REQUEST.size))
                    if count > _MOST_RUNS:
                        return
                    table = await asyncio.wait_for(_exactly(line, 16 * count), STALL_S)
                    await self._answer(line, number, Runs(*np.frombuffer(table, "<i8").reshape(2, -1)))
            except (OSError, EOFError, ValueError, asyncio.TimeoutError):
                return  # the other end has gone, or is no node; or a mirror was removed

    async def _answer(self, line: socket.socket, number: int, runs: Runs) -> None:
        arena, loop = self._arena_of(number), asyncio.get_running_loop()
        if arena is None:
            await loop.sock_sendall(line, bytes([Given.OTHER_NODE]))
        elif not are_inside(arena, runs.offsets, runs.sizes):
            await loop.sock_sendall(line, bytes([Given.OUTSIDE]))
        elif runs.sizes.sum() <= _AT_ONCE_BYTES:
            answer = b"".join((bytes([Given.OK]), *pieces(arena, runs)))
            await asyncio.wait_for(loop.sock_sendall(line, answer), STALL_S)
        else:
            await loop.sock_sendall(line, bytes([Given.OK]))
            await loop.run_in_executor(self._threads, partial(_send, line, arena, runs))

    async def close(self) -> None:
        """Close the port and all lines. No thread uses the arena afterwards."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        for task, line in list(self._lines.items()):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)  # ends a thread that sends
            task.cancel()
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.gather(*self._lines, return_exceptions=True)


async def _exactly(line: socket.socket, size: int) -> bytes:
    """The next bytes of a line. EOFError if it ends."""
    received = bytearray(size)
    view = memoryview(received)
    while view:
        count = await asyncio.get_running_loop().sock_recv_into(line, view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(received)


def _send(line: socket.socket, arena: Arena, runs: Runs) -> None:
    """Blocks until the system has taken all bytes. OSError."""
    line.settimeout(STALL_S)
    try:
        send_runs(line, runs, partial(pieces, arena))
    finally:
        line.setblocking(False)

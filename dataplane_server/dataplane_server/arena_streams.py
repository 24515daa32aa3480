"""Bytes of the arena over sockets; see `rl_dataplane.byte_streams`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from dataplane_server.core.calls.values import Runs
from dataplane_server.storage.arena import in_chunks
from rl_dataplane.byte_streams import Pace, send_pieces

A = TypeVar("A")

_CHUNK_BYTES = 8 << 20


def send_runs(
    line: socket.socket, head: bytes, runs: Runs, pieces: Callable[[Runs], Sequence[memoryview]], until: float | Pace
) -> None:
    """Send a head and the bytes of runs. pieces: the bytes of some of them. OSError."""
    unsent = memoryview(head)
    for chunk in in_chunks(runs, _CHUNK_BYTES):
        send_pieces(line, [unsent, *pieces(chunk)], until)
        unsent = unsent[:0]
    send_pieces(line, [unsent], until)


async def in_thread(threads: Executor, work: Callable[[], A]) -> A:
    """Have a thread do work, and wait for its end even if cancelled: it may use memory until then."""
    return await to_its_end(asyncio.get_running_loop().run_in_executor(threads, work))


async def to_its_end(call: Awaitable[A]) -> A:
    """Await a call. If its caller is cancelled, it goes on to its end, so that nothing is written after that."""
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):  # a second one
                await asyncio.wait([task])
        task.exception()  # marks it as retrieved
        raise

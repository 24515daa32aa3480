"""Lines to the byte ports of other nodes, and the bytes that come by them; `byte_port` says what a line carries.

A line that no read uses is kept for the next one. If it has ended meanwhile, because the node's actor was restarted,
the read takes a new line, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from dataplane_server.arena_streams import in_thread
from dataplane_server.cluster.messages import BytePlace
from dataplane_server.cluster.node.byte_port import REQUEST, STALL_S, Given
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Runs
from rl_dataplane.byte_streams import receive_pieces

_CONNECT_S = 5.0
_THREADS = 32
"""Some may wait for a node that hangs."""
_MOST_IDLE = 256
_SMALL_BYTES = 4096
"""Buffers of a smaller mean size are filled from one that receives all."""


class ByteLines:
    """Of one process; `close` once."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "byte-lines")
        self._lock = threading.Lock()
        self._idle: deque[tuple[BytePlace, socket.socket]] = deque()
        self._used: set[socket.socket] = set()
        self._closed = False

    async def read(self, place: BytePlace, node: int, runs: Runs, into: Sequence[memoryview]) -> None:
        """Fill buffers with the bytes of runs of a node's arena; they have the same size together. Nothing is written
        to them after this returns or raises, but they may be filled in part. Refusal NODE_LOST if the node does not
        answer, or is not known as `node` there.
        """
        await in_thread(self._threads, partial(self._read, place, node, runs, into))

    def _read(self, place: BytePlace, node: int, runs: Runs, into: Sequence[memoryview]) -> None:
        kept = self._kept(place)
        try:
            given = self._ask(kept or self._opened(place), place, node, runs, into)
        except (OSError, EOFError) as error:
            if kept is None or self._closed:
                why = str(error) or "it closed the connection"
                raise Refusal(Reason.NODE_LOST, f"node {node} does not answer: {why}", node=node) from None
            self._read(place, node, runs, into)  # other kept lines have ended as well, so this ends
            return
        if given != Given.OK:
            raise Refusal(Reason.NODE_LOST, f"the actor at {place.host} answers: {given.name}", node=node)

    def _ask(self, line: socket.socket, place: BytePlace, node: int, runs: Runs, into: Sequence[memoryview]) -> Given:
        """Blocks until the bytes are there. Keeps the line, unless it raises."""
        with self._lock:
            self._used.add(line)
        try:
            table = np.array([runs.offsets, runs.sizes], "<i8")
            line.sendall(REQUEST.pack(node, len(runs)) + table.tobytes())
            given = Given(_received(line, 1)[0])
            if given == Given.OK:
                _fill(line, into)
        except BaseException:
            self._forget(line)
            raise
        self._keep(place, line)
        return given

    def _opened(self, place: BytePlace) -> socket.socket:
        line = socket.create_connection((place.host, place.port), _CONNECT_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.settimeout(STALL_S)
        line.sendall(place.secret)
        return line

    def _kept(self, place: BytePlace) -> socket.socket | None:
        with self._lock:
            found = next((entry for entry in self._idle if entry[0] == place), None)
            if found is None:
                return None
            self._idle.remove(found)
            return found[1]

    def _keep(self, place: BytePlace, line: socket.socket) -> None:
        with self._lock:
            self._used.discard(line)
            if not self._closed:
                self._idle.appendleft((place, line))
                if len(self._idle) <= _MOST_IDLE:
                    return
                line = self._idle.pop()[1]
        line.close()

    def _forget(self, line: socket.socket) -> None:
        with self._lock:
            self._used.discard(line)
        line.close()

    async def close(self) -> None:
        """Close all lines; reads under way fail. No buffer is written to afterwards."""
        with self._lock:
            self._closed = True
            for line in self._used:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)  # its thread ends
            idle, self._idle = self._idle, deque()
        for _, line in idle:
            line.close()
        await asyncio.to_thread(self._threads.shutdown)


def _received(line: socket.socket, size: int) -> bytearray:
    received = bytearray(size)
    receive_pieces(line, [memoryview(received)])
    return received


def _fill(line: socket.socket, into: Sequence[memoryview]) -> None:
    """Receive as many bytes as buffers have. EOFError if the line ends before."""
    size_bytes = sum(map(len, into))
    if size_bytes < _SMALL_BYTES * (len(into) - 1):
        _scatter(_received(line, size_bytes), into)
    else:
        receive_pieces(line, into)


def _scatter(data: bytearray, into: Sequence[memoryview]) -> None:
    at, source = 0, memoryview(data)
    for view in into:
        view[:] = source[at : at + len(view)]
        at += len(view)

"""Lines to the ports of other nodes, and the bytes that come by them; see `port`.

A line that no read uses is kept for the next one. If it has ended meanwhile, because the node's actor was restarted,
the read takes a new line, once. Not if nothing comes by it: that node hangs, and would do so by another line.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from dataplane_server.arena_streams import in_thread
from dataplane_server.cluster.messages import BytePlace
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Runs
from dataplane_server.service.local.local_calls import arena_runs
from dataplane_server.service.values import cut_into
from rl_dataplane.byte_streams import prepare_line, receive_pieces
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import HEAD, frame_of, response_head

_CONNECT_S = 5.0
_STALL_S = 30.0
"""A read fails if nothing comes for so long."""
_INLINE_BYTES = 64 << 10
_THREADS = 256
_OF_NODE = 16
"""Reads of one node at a time: others do not wait for one that hangs."""
_MOST_IDLE = 256
_SMALL_BYTES = 4096
"""Buffers of a smaller mean size are filled from one that receives all."""


class ByteLines:
    """Of one process; `close` once."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "byte-lines")
        self._turns: defaultdict[int, asyncio.Semaphore] = defaultdict(partial(asyncio.Semaphore, _OF_NODE))
        self._lock = threading.Lock()
        self._idle: deque[tuple[BytePlace, socket.socket]] = deque()
        self._used: set[socket.socket] = set()
        self._closed = False

    async def read(self, place: BytePlace, node: int, runs: Runs, into: Sequence[memoryview]) -> None:
        """Fill buffers with the bytes of runs of a node's arena; they have the same size together. Nothing is written
        to them after this returns or raises, but they may be filled in part. Refusal NODE_LOST if the node does not
        answer, or is not known as `node` there.
        """
        async with self._turns[node]:
            if self._closed:
                raise Refusal(Reason.NODE_LOST, f"node {node} is not asked any more: reads end here", node=node)
            await in_thread(self._threads, partial(self._read, place, node, runs, into))

    def _read(self, place: BytePlace, node: int, runs: Runs, into: Sequence[memoryview]) -> None:
        kept = self._kept(place)
        try:
            refused = self._ask(kept or self._opened(place), place, node, runs, into)
        except (OSError, EOFError, DecodeError) as error:
            if kept is None or self._closed or isinstance(error, TimeoutError):
                why = str(error) or "it closed the connection"
                raise Refusal(Reason.NODE_LOST, f"node {node} does not answer: {why}", node=node) from None
            self._read(place, node, runs, into)  # other kept lines have ended as well, so this ends
            return
        if refused is not None:
            raise Refusal(Reason.NODE_LOST, f"the actor at {place.host} answers: {refused}", node=node)

    def _ask(
        self, line: socket.socket, place: BytePlace, node: int, runs: Runs, into: Sequence[memoryview]
    ) -> str | None:
        """Why the other node refuses, or None. Blocks until the bytes are there. Keeps the line, unless it raises."""
        try:
            self._use(line)
            request = pb.FetchRequest(runs=arena_runs(runs), node=node, inline_bytes=_INLINE_BYTES)
            outcome, body = _exchanged(line, pb.LOCAL_METHOD_FETCH, request)
            refused = status_pb2.Status.FromString(body).message if outcome == pb.LOCAL_OUTCOME_ERROR else None
            if refused is None:
                _take(line, pb.FetchResponse.FromString(body), into)
        except BaseException:
            self._forget(line)
            raise
        self._keep(place, line)
        return refused

    def _opened(self, place: BytePlace) -> socket.socket:
        line = socket.create_connection((place.host, place.port), _CONNECT_S)
        try:
            self._use(line)
            prepare_line(line)
            line.settimeout(_STALL_S)
            outcome, _ = _exchanged(line, pb.LOCAL_METHOD_DIRECT, pb.DirectRequest(nonce=place.secret))
            if outcome == pb.LOCAL_OUTCOME_ERROR:
                raise ConnectionRefusedError("another actor is there")
        except BaseException:
            self._forget(line)
            raise
        return line

    def _use(self, line: socket.socket) -> None:
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("reads end here")
            self._used.add(line)

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


def _exchanged(line: socket.socket, method: int, request: Message) -> tuple[int, bytes]:
    """LocalOutcome and body of the response to a request."""
    line.sendall(frame_of(method, request.SerializeToString()))
    size, outcome = response_head(_received(line, HEAD.size))
    return outcome, bytes(_received(line, size))


def _received(line: socket.socket, size: int) -> bytearray:
    received = bytearray(size)
    receive_pieces(line, [memoryview(received)])
    return received


def _take(line: socket.socket, response: pb.FetchResponse, into: Sequence[memoryview]) -> None:
    """Fill buffers with the values in a response, or with those that follow it. EOFError if there are not as many."""
    size_bytes = sum(map(len, into))
    if response.HasField("values"):
        if len(response.values) != size_bytes:
            raise EOFError(f"{len(response.values)} of {size_bytes} bytes came")
        cut_into(into, response.values)
    elif size_bytes < _SMALL_BYTES * (len(into) - 1):
        cut_into(into, _received(line, size_bytes))
    else:
        receive_pieces(line, into)

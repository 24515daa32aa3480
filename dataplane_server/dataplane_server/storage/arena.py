"""Where the bytes of values lie: one mapping of anonymous memory, as large as the budget.

The core decides which range belongs to whom; this module only lends views. Pages are taken from the system when they
are first written and kept afterwards, so a warm server neither faults nor grows: size its memory limit for the whole
budget.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable

from dataplane_server.core.space import Run


class Arena:
    """`size_bytes` of memory, addressed by offset."""

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._map)

    def view(self, run: Run) -> memoryview:
        """The bytes of a run, writable; valid while the core says the run is in use."""
        return self._view[run.offset : run.offset + run.size_bytes]

    def close(self) -> None:
        """Give the memory back; views must not be used afterwards."""
        self._view.release()
        with contextlib.suppress(BufferError):  # a call that was cut off still holds a view: it goes when that goes
            self._map.close()


class RunWriter:
    """Copies a stream of bytes into runs, one after the other."""

    def __init__(self, arena: Arena, runs: Iterable[Run]) -> None:
        self._rest = iter(runs)
        self._arena = arena
        self._target = memoryview(b"")
        self.written = 0

    def write(self, data: bytes) -> None:
        """Copy the next bytes; the caller has checked that the runs have room for them."""
        source = memoryview(data)
        self.written += len(source)
        while source:
            if not self._target:
                self._target = self._arena.view(next(self._rest))
            size = min(len(source), len(self._target))
            self._target[:size] = source[:size]
            self._target, source = self._target[size:], source[size:]


def cut(arena: Arena, runs: Iterable[Run], chunk_bytes: int) -> Iterable[bytes]:
    """The bytes of the runs in chunks of chunk_bytes (the last one shorter), each copied once."""
    pieces: list[memoryview] = []
    room = chunk_bytes
    for run in runs:
        rest = arena.view(run)
        while rest:
            piece, rest = rest[:room], rest[room:]
            pieces.append(piece)
            room -= len(piece)
            if not room:
                yield b"".join(pieces)
                pieces, room = [], chunk_bytes
    if pieces:
        yield b"".join(pieces)

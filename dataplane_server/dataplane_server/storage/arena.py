"""The arena: one memory mapping of the budget's size, which stores all values. Clients of this host may map it too.

The core decides what each range holds; this module only gives views. The system provides pages when they are first
written, and the arena keeps them, so a warm server neither faults nor grows. Its memory limit must allow for the whole
budget.

A shared arena is an unnamed memory file (memfd), so there is no file to size, name or clean up. A process maps it by a
descriptor that it received, and the kernel frees it when the last such process ends, by whatever cause. Its size is
sealed, so no process can truncate it under the mapping of another. The page after the values holds a nonce, by which a
client recognises the arena.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
from collections.abc import Iterable, Iterator

from dataplane_server.core.calls.values import Copy, Run

NONCE_BYTES = 16
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


class Arena:
    """`size_bytes` of memory, addressed by offset. nonce: 16 random bytes that identify this arena."""

    def __init__(self, size_bytes: int, *, shared: bool = False) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.nonce_offset = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.file_bytes = self.nonce_offset + mmap.PAGESIZE
        self._file: int | None = None
        if shared:
            self._file, self._map = _shared_memory(self.file_bytes)
        else:
            self._map = _own_memory(self.file_bytes)
        self._map[self.nonce_offset : self.nonce_offset + NONCE_BYTES] = self.nonce
        self._view = memoryview(self._map)

    @property
    def shared(self) -> bool:
        """Whether other processes can map the memory."""
        return self._file is not None

    def view(self, run: Run) -> memoryview:
        """The bytes of a run, writable. Valid until the core frees the run."""
        return self._view[run.offset : run.offset + run.size_bytes]

    def copy(self, copies: Iterable[Copy]) -> None:
        """Copy bytes from places to others within the arena."""
        for source, target, size in copies:
            self._view[target : target + size] = self._view[source : source + size]

    @contextlib.contextmanager
    def descriptors(self) -> Iterator[list[int]]:
        """Two descriptors of a shared arena to send to another process: one to read it, one to write it."""
        if self._file is None:
            raise ValueError("this arena is not shared")
        reading = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield [reading, self._file]
        finally:
            os.close(reading)

    def close(self) -> None:
        """Release the memory. Views must not be used afterwards. Clients that still map the arena keep its memory."""
        self._view.release()
        with contextlib.suppress(BufferError):  # an interrupted call still has a view; the map closes with it
            self._map.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def can_share() -> bool:
    """Whether this system has memory files."""
    return hasattr(os, "memfd_create")


def _own_memory(size_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _shared_memory(size_bytes: int) -> tuple[int, mmap.mmap]:
    file = os.memfd_create("rl-dataplane-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, size_bytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, sum(getattr(fcntl, seal) for seal in _SEALS))
        mapping = mmap.mmap(file, size_bytes)
    except BaseException:
        os.close(file)
        raise
    with contextlib.suppress(OSError):  # huge pages save faults, if the system allows them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return file, mapping


class RunWriter:
    """Copies a stream of bytes into consecutive runs."""

    def __init__(self, arena: Arena, runs: Iterable[Run]) -> None:
        self._rest = iter(runs)
        self._arena = arena
        self._target = memoryview(b"")
        self._filled = 0

    def write(self, data: bytes | memoryview) -> None:
        """Copy the next bytes. The caller has checked that they fit into the runs."""
        source = memoryview(data)
        taken = 0
        while taken < len(source):
            if self._filled == len(self._target):
                self._target, self._filled = self._arena.view(next(self._rest)), 0
            size = min(len(source) - taken, len(self._target) - self._filled)
            self._target[self._filled : self._filled + size] = source[taken : taken + size]
            self._filled += size
            taken += size


def cut(arena: Arena, runs: Iterable[Run], chunk_bytes: int) -> Iterator[list[memoryview]]:
    """The bytes of the runs in chunks of chunk_bytes (the last one shorter), each as views of its pieces."""
    pieces: list[memoryview] = []
    room = chunk_bytes
    for run in runs:
        rest = arena.view(run)
        while rest:
            piece, rest = rest[:room], rest[room:]
            pieces.append(piece)
            room -= len(piece)
            if not room:
                yield pieces
                pieces, room = [], chunk_bytes
    if pieces:
        yield pieces

"""The arena: one memory mapping of the budget's size, which stores all values. Clients of this host may map it too.

The core decides what each range holds; this module only gives views. The system provides pages when they are first
written, and the arena keeps them, so a warm server neither faults nor grows. Its memory limit must allow for the whole
budget.

A shared arena is an unnamed memory file (memfd), so there is no file to size, name or clean up. A process maps it by a
descriptor that it received, and the kernel frees it when the last such process ends, by whatever cause. Its size is
sealed, so no process can truncate it under the mapping of another.

An arena with a file keeps its values there for the next server. Its clients map it in the same way, if it is shared.

All clients get the same two open files, one to read and one to write, which are opened before the first client has any.
So nothing that a client does to the memory or to its rights keeps it from the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dataplane_server.core.calls.values import Copy, Run, Runs
from dataplane_server.storage.arena_file import ArenaFile, closed_on_error
from rl_dataplane.v1.local_frames import memory_nonce

_MANY = 64
_SMALL_BYTES = 64
"""Below this mean size, many runs are copied at once; a view for each takes longer."""
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


class Arena:
    """`size_bytes` of memory, addressed by offset. proof: 16 random bytes for the clients that get the descriptors.

    file: where the values are kept, or None; ArenaFile has its errors, and how long it blocks.
    """

    def __init__(self, size_bytes: int, *, shared: bool = False, file: Path | None = None) -> None:
        self.proof = secrets.token_bytes(16)
        self.file_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.shared = shared  # whether other processes can map the memory
        self._file: ArenaFile | _MemoryFile | None = None
        if file is not None:
            self._file = ArenaFile(file, self.file_bytes, shared=shared)
        elif shared:
            self._file = _MemoryFile(self.file_bytes)
        self._map = _mapped(self._file, self.file_bytes)
        self._view = memoryview(self._map)

    @property
    def fresh(self) -> bool:
        """Whether all bytes were zero at first, because no former life left values."""
        return self._file is None or self._file.fresh

    @property
    def guarded(self) -> bool:
        """Whether clients' descriptors cannot truncate the memory, which would end the server by SIGBUS."""
        return self._file is None or self._file.guarded

    def view(self, run: Run) -> memoryview:
        """The bytes of a run, writable. Valid until the core frees the run."""
        return self._view[run.offset : run.offset + run.size_bytes]

    def copy(self, copies: Iterable[Copy]) -> None:
        """Copy bytes from places to others within the arena."""
        for source, target, size in copies:
            self._view[target : target + size] = self._view[source : source + size]

    @property
    def nonce(self) -> bytes:
        """Identifies this memory and this arena, to clients that know the proof. ValueError if it is not shared."""
        return memory_nonce(self.proof, self.descriptors()[0])

    def descriptors(self) -> tuple[int, int]:
        """Descriptors of a shared arena to send to other processes: one to read it, one to write it. They stay open
        until `close`.
        """
        if self._file is None or not self.shared:
            raise ValueError("this arena is not shared")
        reading, writing = self._file.for_clients
        return reading, writing

    def holders(self) -> list[int]:
        """The former servers whose clients may still read and write the arena's file, as ArenaFile numbers them."""
        return [] if self._file is None else self._file.holders()

    @property
    def memory(self) -> memoryview:
        """All bytes."""
        return self._view

    @property
    def file(self) -> ArenaFile:
        """Of an arena that has one."""
        assert isinstance(self._file, ArenaFile)  # noqa: S101  # the caller has given a file
        return self._file

    def sync(self) -> None:
        """Wait until all values of an arena with a file are on stable storage. OSError if that fails."""
        if self._file is not None:
            self._file.sync()

    def forget_cached(self) -> None:
        """Make the next look at values read from the disk, unless a client maps them. What is not there yet is written
        first.
        """
        self.sync()
        if self._file is not None:
            os.posix_fadvise(self._file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Release the memory. Views must not be used afterwards. Clients that still map the arena keep its memory."""
        self._view.release()
        with contextlib.suppress(BufferError):  # an interrupted call still has a view; the map closes with it
            self._map.close()
        if self._file is not None:
            self._file.close()
            self._file = None


def can_share() -> bool:
    """Whether this system has memory files."""
    return hasattr(os, "memfd_create")


def _mapped(file: ArenaFile | _MemoryFile | None, size_bytes: int) -> mmap.mmap:
    """The memory of a file, or of this process alone."""
    if file is None:
        return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        mapping = mmap.mmap(file.descriptor, size_bytes)
    except BaseException:
        file.close()
        raise
    with contextlib.suppress(OSError):  # huge pages save faults, if the system allows them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


class _MemoryFile:
    """What ArenaFile is, without a name: its first life is its last."""

    fresh = guarded = True

    def __init__(self, size_bytes: int) -> None:
        self.descriptor = os.memfd_create("rl-dataplane-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with closed_on_error(self.descriptor):
            os.ftruncate(self.descriptor, size_bytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, sum(getattr(fcntl, seal) for seal in _SEALS))
            reading = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        os.fchmod(self.descriptor, 0)  # who has the reading one cannot open the memory again to write it
        self.for_clients = (reading, self.descriptor)

    def holders(self) -> list[int]:
        return []

    def sync(self) -> None:
        """It lives in memory alone."""

    def close(self) -> None:
        for descriptor in self.for_clients:
            os.close(descriptor)


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


def in_chunks(runs: Runs, chunk_bytes: int) -> Iterator[Runs]:
    """The runs in order, some of them split, in groups of chunk_bytes together (the last one less)."""
    ends = np.cumsum(runs.sizes)
    size_bytes = int(ends[-1]) if len(ends) else 0
    for start in range(0, size_bytes, chunk_bytes):
        stop = min(start + chunk_bytes, size_bytes)
        first, last = np.searchsorted(ends, (start, stop - 1), side="right").tolist()
        offsets, sizes = runs.offsets[first : last + 1].copy(), runs.sizes[first : last + 1].copy()
        sizes[-1] -= ends[last] - stop
        before = start - (ends[first] - runs.sizes[first])
        offsets[0], sizes[0] = offsets[0] + before, sizes[0] - before
        yield Runs(offsets, sizes)


def pieces(arena: Arena, runs: Runs) -> list[memoryview]:
    """The bytes of the runs, one after another: views of the arena, or one copy if there are many small ones."""
    if len(runs) < _MANY or (size_bytes := int(runs.sizes.sum())) >= _SMALL_BYTES * len(runs):
        return [arena.view(run) for run in runs]
    places = np.repeat(runs.offsets - np.cumsum(runs.sizes) + runs.sizes, runs.sizes)
    places += np.arange(size_bytes)
    return [np.frombuffer(arena.memory, np.uint8)[places].data]

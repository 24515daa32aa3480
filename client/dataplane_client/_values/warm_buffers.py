"""A pool of large host buffers. It reuses memory, because new pages cost several times the copy that fills them:
writing 50 MB takes 29 ms in new pages of 4 KiB, 6 ms in new huge pages, and 1.9 ms in pages that are mapped already.

A buffer's memory returns to the pool when the last array, tensor or view on it is gone, and never before, however it
was passed on: NumPy, torch, memoryviews and DLPack all keep the array that ``take`` returned, and the pool watches that
array. **A buffer contains arbitrary bytes**: its user overwrites all of them.

A pool has no lock, because an array may be freed anywhere, also by a garbage collection on a thread that is inside the
pool. Its only state is a fixed set of deques, whose ends are pushed and popped atomically.

Memory is private to a process, and mapped in huge pages if the system offers them. A forked child reads its parent's
buffers as they were at the fork, and drops the idle ones.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from dataplane_client._common.arrays import ByteArray

SMALLEST: Final = 1 << 18
"""Bytes of the smallest pooled buffer; smaller ones come from the allocator."""

_IDLE_BYTES: Final = 1 << 30


class WarmBuffers:
    """A pool of buffers, for any number of threads. It keeps at most idle_bytes of unused memory."""

    def __init__(self, idle_bytes: int) -> None:
        self._most_idle = idle_bytes
        self._ages = itertools.count()
        self._idle: dict[int, deque[tuple[int, mmap.mmap]]] = {size: deque() for size in _classes(idle_bytes)}

    @property
    def idle_bytes(self) -> int:
        """Bytes of pooled memory that are not in use."""
        return sum([size * len(mappings) for size, mappings in self._idle.items() if mappings])

    def take(self, nbytes: int) -> ByteArray:
        """A writable, contiguous 1-D array of nbytes with arbitrary contents.

        Its mapping is at most an eighth larger than nbytes. Raises MemoryError when the system has no memory left.
        """
        if nbytes < SMALLEST:
            return np.empty(nbytes, np.uint8)
        size = _class_of(nbytes)
        mapping = self._reuse(size) or self._map(size)
        buffer = np.frombuffer(mapping, np.uint8, nbytes)
        weakref.finalize(buffer, self._recycle, mapping).atexit = False
        return buffer

    def drop_idle(self) -> None:
        """Return all unused memory to the system."""
        for mappings in self._idle.values():
            mappings.clear()

    def _reuse(self, size: int) -> mmap.mmap | None:
        with suppress(KeyError, IndexError):
            return self._idle[size].pop()[1]  # the one used last, which may still be in the caches
        return None

    def _map(self, size: int) -> mmap.mmap:
        try:
            return _map(size)
        except OSError:
            self.drop_idle()
        try:
            return _map(size)
        except OSError as error:
            raise MemoryError(f"no memory for a buffer of {size} bytes: {error}") from error

    def _recycle(self, mapping: mmap.mmap) -> None:
        mappings = self._idle.get(len(mapping))
        if mappings is None:
            return  # larger than idle_bytes
        mappings.append((next(self._ages), mapping))
        while self.idle_bytes > self._most_idle:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest: list[tuple[int, deque[tuple[int, mmap.mmap]]]] = []
        for mappings in self._idle.values():
            with suppress(IndexError):  # empty, or emptied by another thread
                oldest.append((mappings[0][0], mappings))
        if oldest:
            _, mappings = min(oldest, key=lambda entry: entry[0])
            with suppress(IndexError):
                mappings.popleft()


def _class_of(nbytes: int) -> int:
    """The size of the mapping of a buffer: one of eight sizes between a power of two and the next."""
    step = 1 << (nbytes.bit_length() - 4)
    return -(-nbytes // step) * step


def _classes(largest: int) -> Iterator[int]:
    size = SMALLEST
    while size <= largest:
        yield size
        size = _class_of(size + 1)


def _map(size: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


warm_buffers: Final = WarmBuffers(_IDLE_BYTES)
"""The pool of this process."""

take: Final = warm_buffers.take
os.register_at_fork(after_in_child=warm_buffers.drop_idle)

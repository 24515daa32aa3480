"""Copies of other nodes' bytes in a node's arena, behind the part where the core places values.

A copy is found by the run that it is a copy of: node, offset, size and version. The coordinator changes the version of
a run once bytes in it may have been replaced. So an equal version means equal bytes, and an old copy is never found.
A read of half a run does not find the copy of the whole: to find copies by interval, the version would have to be the
time of the last release near the run, and a lease would have to tell its own time.

A copy that is used stays where it is. Those that nothing uses any more are kept until their space is needed, and go in
the order in which they were last used. The copies that one read adds lie side by side in the order of the read, if one
free range is long enough: then its columns are contiguous for the reader.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dataplane_server.core.rows.space import Space


class RemoteRun(NamedTuple):
    """Bytes of another node. offset: in that node's arena."""

    node: int
    offset: int
    size_bytes: int
    version: int


@dataclass(eq=False, slots=True)
class CachedRun:
    """A copy. offset: in this node's arena. users: how often it is held."""

    run: RemoteRun
    offset: int
    users: int = 1


class Cache:
    """Which bytes from `base` to `base + size_bytes` of the arena are copies of what. Moves no bytes. closed: there is
    space for no more copies, as clients of a former life of the arena may still read theirs.
    """

    closed = False

    def __init__(self, base: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._base = base
        self._space = Space(size_bytes)
        self._known: dict[RemoteRun, CachedRun] = {}
        self._unused: OrderedDict[CachedRun, None] = OrderedDict()  # all of them known
        self._unused_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Of all copies, also of those that nothing uses."""
        return self._space.used

    def hold(self, runs: Iterable[RemoteRun]) -> tuple[list[CachedRun], list[CachedRun]] | None:
        """Hold a copy of each distinct run until `release`: those that were there, and new ones, which the caller has
        to fill. None, and nothing is held, if there is no space for the new ones beside the copies in use and those
        that were there. If only pieces too short for them are free, the other unused copies are gone.
        """
        distinct = dict.fromkeys(runs)
        found = [self._known[run] for run in distinct if run in self._known]
        missing = [run for run in distinct if run not in self._known]
        if not self._may_fit(missing, found):
            return None
        for copy in found:
            self._use(copy)
        offsets = self._place([run.size_bytes for run in missing])
        if offsets is None:
            self.release(found)
            return None
        new = [CachedRun(run, offset) for run, offset in zip(missing, offsets, strict=True)]
        self._known.update(zip(missing, new, strict=True))
        return found, new

    def find(self, run: RemoteRun) -> CachedRun | None:
        """The copy that `hold` would find. Holds nothing."""
        return self._known.get(run)

    def release(self, copies: Iterable[CachedRun]) -> None:
        """Take back one hold of each."""
        for copy in copies:
            copy.users -= 1
            if not copy.users:
                self._unused[copy] = None
                self._unused_bytes += copy.run.size_bytes
                if self._known.get(copy.run) is not copy:
                    self._remove(copy)

    def forget(self, copies: Iterable[CachedRun]) -> None:
        """Find these no more. Their space is free when nothing uses them."""
        for copy in copies:
            if self._known.get(copy.run) is copy:
                del self._known[copy.run]
                if not copy.users:
                    self._remove(copy)

    def forget_all(self) -> None:
        """Find nothing more of what is there now: node numbers and versions have another meaning from now on."""
        self.forget(list(self._known.values()))

    def _use(self, copy: CachedRun) -> None:
        if not copy.users:
            del self._unused[copy]
            self._unused_bytes -= copy.run.size_bytes
        copy.users += 1

    def _remove(self, copy: CachedRun) -> None:
        """Free the space of an unused copy."""
        del self._unused[copy]
        self._unused_bytes -= copy.run.size_bytes
        self._space.release(copy.offset - self._base, copy.run.size_bytes)

    def _may_fit(self, missing: Sequence[RemoteRun], found: Iterable[CachedRun]) -> bool:
        """Whether there are enough bytes, in whatever pieces, for new copies beside those in use and those found."""
        if not missing:
            return True
        kept = sum(copy.run.size_bytes for copy in found if not copy.users)
        room = self._space.free + self._unused_bytes - kept
        return not self.closed and sum(run.size_bytes for run in missing) <= room

    def _place(self, sizes: Sequence[int]) -> list[int] | None:
        """Offsets for new copies, in order; evicts no more than it must. None if free pieces are too short."""
        if not sizes:
            return []
        total, row_bytes = sum(sizes), np.array([sizes], np.int64)
        while self._space.free < total or (placed := self._space.allocate_columns(row_bytes)) is None:
            if not self._unused:
                return None
            self.forget([next(iter(self._unused))])
        offsets: list[int] = (placed[0][0] + self._base).tolist()
        return offsets

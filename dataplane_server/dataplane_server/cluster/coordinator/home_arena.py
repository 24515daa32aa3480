"""The arena of the coordinator's own node, as the coordinator sees it: the file of the node actor's arena, mapped.

It stands where a server of one machine has its arena. The bytes of other nodes are not here: `ClusterValues` fetches
them. The node actor owns the file, its space, its clients, and what survives it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

from dataplane_server.cluster.coordinator.members import not_there
from dataplane_server.core.calls.values import Run
from dataplane_server.core.rows.regions import node_of
from dataplane_server.storage.arena import Arena


class HomeArena(Arena):
    """Unmapped until `map`. known: a former coordinator has placed values, and its clients may be there.

    holders: nodes with clients of a former life of the coordinator.
    """

    def __init__(self, *, known: bool = False) -> None:
        self.shared = False
        self.file_bytes = 0
        self.holders: Callable[[], list[int]] = lambda: [0] if known else []
        self._base = 0
        self._home: memoryview | None = None
        self._mapped: mmap.mmap | None = None

    def map(self, path: Path, base: int, size_bytes: int) -> None:
        """Map the arena of the node whose offsets begin at base. OSError if the file is not there."""
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), size_bytes)
        self.unmap()
        self._mapped, self._home, self._base, self.file_bytes = mapped, memoryview(mapped), base, size_bytes

    def unmap(self) -> None:
        self._home = self._mapped = None  # views that calls still have keep the mapping

    def has(self, run: Run) -> bool:
        """Whether the bytes of a run are here."""
        return self._home is not None and self._base <= run.offset < self._base + self.file_bytes

    def view(self, run: Run) -> memoryview:
        """Refusal NODE_LOST for a run of a node that this one was before."""
        if self._home is None or not self.has(run):
            raise not_there(node_of(run.offset))
        start = run.offset - self._base
        return self._home[start : start + run.size_bytes]

    @property
    def fresh(self) -> bool:
        return False  # nodes tell what they have

    @property
    def guarded(self) -> bool:
        return True

    def sync(self) -> None:
        """Values of a cluster are in memory."""

    def forget_cached(self) -> None:
        """Likewise."""

    def close(self) -> None:
        self.unmap()

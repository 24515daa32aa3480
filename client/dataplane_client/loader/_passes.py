"""The passes of one loader in one process, and the nursery of their workers."""

from __future__ import annotations

import weakref

from dataplane_client.loader._iterator import ClaimIterator
from dataplane_client.loader._nursery import Nursery, nursery


class Passes:
    """Passes end when nobody refers to them any more. Within a `with` block of the loader they are kept until it ends:
    a loop that is left lets go of its pass before anybody can know whether by an error, and only the block learns that.
    """

    def __init__(self) -> None:
        self._passes: weakref.WeakSet[ClaimIterator] = weakref.WeakSet()
        self._kept: list[ClaimIterator] = []
        self._keeps = False
        self._nursery: Nursery | None = None

    def nursery(self) -> Nursery:
        """Where workers come from, from when it is first wanted until `close`."""
        if self._nursery is None:
            self._nursery = nursery()
        return self._nursery

    def add(self, begun: ClaimIterator) -> None:
        self._passes.add(begun)
        if self._keeps:
            self._kept.append(begun)

    def keep(self) -> None:
        """From now on, keep passes until `finish` or `close`."""
        self._keeps = True

    def finish(self) -> None:
        """Commit what is at hand in passes that were kept. Raises what the first commit that fails raises."""
        for kept in self._kept:
            kept.finish()

    def close(self, reason: str) -> None:
        """Release what is at hand, for this reason, and end everything."""
        self._keeps = False
        for begun in list(self._passes):
            begun.close(reason)
        self._kept.clear()
        self._nursery = None

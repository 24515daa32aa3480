"""The memory of a cluster: a region for each node's arena, side by side in one range of offsets.

An offset has the node's number in its upper bits, so whatever keeps offsets keeps the node with them: tables of places,
runs, copies. Numbers of nodes ascend and are never used again. A node that is lost keeps its region until the last of
its bytes is released; nothing is placed there any more.

A node may have *mirrors*: other nodes that have all its bytes, too. If such a node ends, it lives on in its mirrors:
its bytes stay, nothing is placed there any more, and it is lost once the last mirror is.

Other nodes keep copies of bytes that they have read. A copy of a run is good for as long as no byte of the run was
released, since only then other values may be there. `versions` tells that: it counts releases by blocks of the region,
so a release nearby makes a copy count as old, never the other way round.

`Space` has the laws of one region. What it does for one arena, this does for all; see there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array, Run
from dataplane_server.core.rows.releases import Releases
from dataplane_server.core.rows.space import Space

NODE_SHIFT = 44
"""Bits of an offset within its node: 16 TiB."""
WITHIN_NODE = (1 << NODE_SHIFT) - 1
"""Mask of the bits of an offset within its node."""
MAX_NODES = 1 << 14
_BLOCKS = 1 << 14
"""In which the releases of a region are counted."""


def node_of(offset: int) -> int:
    """The node in whose arena a global offset is."""
    return offset >> NODE_SHIFT


class Mirror(NamedTuple):
    """A second copy of a node's bytes. on: the node that has it. name: by which that node knows it."""

    on: int
    name: str


class Region(Space):
    """The space of one node. base: what its offsets begin with. name: of the arena. mirrors: with all its bytes. ended:
    it lives on in them. lost: its bytes are gone. Nothing is placed where a node has ended or is lost.
    """

    def __init__(self, number: int, name: str, capacity: int) -> None:
        super().__init__(capacity)
        self.number = number
        self.name = name
        self.base = number << NODE_SHIFT
        self.mirrors: tuple[Mirror, ...] = ()
        self.ended = False
        self.lost = False
        self._block_bytes = -(-capacity // _BLOCKS)
        self._released: npt.NDArray[np.int64] = np.zeros(_BLOCKS, np.int64)  # how often bytes of each block were

    def count_releases(self, starts: Int64Array, ends: Int64Array) -> None:
        """Note that bytes at these offsets of the region may be replaced from now on."""
        if len(starts):
            change = np.zeros(_BLOCKS + 1, np.int64)
            np.add.at(change, starts // self._block_bytes, 1)
            np.add.at(change, (ends - 1) // self._block_bytes + 1, -1)
            self._released += np.cumsum(change[:-1])

    def versions(self, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """A number for each range of the region that grows when a byte of it is released."""
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._released)])
        found: Int64Array = before[(ends - 1) // self._block_bytes + 1] - before[starts // self._block_bytes]
        return found


class Regions(Releases):
    """The spaces of all nodes, by number."""

    span = MAX_NODES << NODE_SHIFT

    def __init__(self) -> None:
        super().__init__()
        self._nodes: dict[int, Region] = {}
        self._next = 1

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def add(self, name: str, capacity: int) -> int:
        """A region for the arena of this name, which may be known already. Returns its number."""
        known = next((region for region in self if region.name == name and not region.ended), None)
        if known is not None:
            if known.capacity != capacity:
                message = f"node {known.number} has {known.capacity} bytes of memory, and comes back with {capacity}"
                raise Refusal(Reason.INVALID_REQUEST, message)
            return known.number
        if self._next >= MAX_NODES:
            raise Refusal(Reason.LIMIT_REACHED, f"{MAX_NODES} nodes have come and gone; start another cluster")
        self._nodes[self._next] = Region(self._next, name, capacity)
        self._next += 1
        self.freed = True  # calls may wait for space of any node
        return self._next - 1

    def lose(self, number: int) -> list[int]:
        """A node and all mirrors that it had are gone. Returns the nodes whose bytes are: this one, unless it has a
        mirror, and those that lived on here alone.
        """
        self.region(number).ended = True
        for region in self:
            region.mirrors = tuple(mirror for mirror in region.mirrors if mirror.on != number)
        return [region.number for region in list(self) if self._is_gone(region)]

    def set_mirror(self, number: int, mirror: Mirror) -> bool:
        """A node has this mirror from now on; if it has no name, none on that node any more. Returns whether its bytes
        are gone with it. Refusal NODE_LOST if either is not there.
        """
        region = self.region(number)
        others = tuple(other for other in region.mirrors if other.on != mirror.on)
        if mirror.name:
            self.placeable(mirror.on)
            others += (mirror,)
        region.mirrors = others
        return self._is_gone(region)

    def _is_gone(self, region: Region) -> bool:
        """Whether no node has the bytes of this one any more; then place nothing there, and forget it once it is
        empty. A node that has just ended is forgotten, too, if it is empty.
        """
        region.lost = region.ended and not region.mirrors
        self._forget_empty(region.number)
        return region.lost

    def region(self, number: int) -> Region:
        """A node that is there, or lives on in mirrors. Refusal NODE_LOST."""
        found = self._nodes.get(number)
        if found is None or found.lost:
            raise _has_left(number)
        return found

    def placeable(self, number: int) -> Region:
        """A node on which values are placed. Refusal NODE_LOST."""
        region = self.region(number)
        if region.ended:
            raise _has_left(number)
        return region

    def __iter__(self) -> Iterator[Region]:
        """All nodes that are there, or live on in mirrors."""
        return (region for region in self._nodes.values() if not region.lost)

    def _forget_empty(self, number: int) -> None:
        region = self._nodes[number]
        if region.ended and not region.used:  # bytes of deferred releases are in use
            del self._nodes[number]

    # -- as Space ------------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        return sum(region.capacity for region in self._nodes.values())

    @property
    def used(self) -> int:
        return sum(region.used for region in self._nodes.values())

    @property
    def free(self) -> int:
        return sum(region.free for region in self)

    def capacity_of(self, node: int) -> int:
        return self.placeable(node).capacity

    def free_of(self, node: int) -> int:
        return self.placeable(node).free

    def allocate_columns(self, row_bytes: Int64Array, node: int = 0) -> tuple[Int64Array, tuple[Run, ...]] | None:
        """As of Space, on one node."""
        region = self.placeable(node)
        placed = region.allocate_columns(row_bytes)
        if placed is None:
            return None
        offsets, runs = placed
        return offsets + region.base, tuple(Run(run.offset + region.base, run.size_bytes) for run in runs)

    def release_ranges(self, starts: Int64Array, ends: Int64Array) -> None:
        self.freed = True
        numbers = starts >> NODE_SHIFT
        for number in np.unique(numbers).tolist():
            region, here = self._nodes[number], numbers == number
            own = starts[here] - region.base, ends[here] - region.base
            region.count_releases(*own)
            region.release_ranges(*own)
            self._forget_empty(number)

    @property
    def free_pieces(self) -> int:
        return sum(region.free_pieces for region in self)

    @property
    def largest_free(self) -> int:
        return max((region.largest_free for region in self), default=0)

    def free_ranges(self) -> Iterator[tuple[int, int]]:
        for region in self._nodes.values():
            yield from ((start + region.base, end + region.base) for start, end in region.free_ranges())

    def pending_ranges(self) -> Iterator[tuple[int, int]]:
        for region in self._nodes.values():
            yield from ((start + region.base, end + region.base) for start, end in region.pending_ranges())

    @property
    def pending_frees(self) -> int:
        return sum(region.pending_frees for region in self._nodes.values())

    def merge_pending(self, count: int) -> None:
        for region in self._nodes.values():
            region.merge_pending(count)


def _has_left(number: int) -> Refusal:
    return Refusal(Reason.NODE_LOST, f"node {number} has left the cluster", node=number)


AnySpace = Space | Regions
"""The memory of one arena, or of a cluster's."""

"""Modified first-fit decreasing. Saves bins if long sequences leave room for two short ones.

After D. S. Johnson and M. R. Garey, "A 71/60 theorem for bin packing", Journal of Complexity 1 (1985). Step 5 differs:
theirs is first-fit decreasing, and the bound of the title holds for theirs. Sequences are classed by the capacity C:
large > C/2, medium > C/3, small > C/6, tiny. Five steps:

1. every large sequence opens a bin, longest first;
2. each bin, forward, takes the longest medium that fits, one at most;
3. each bin, backward, takes the shortest small and the longest other small that fits beside it, provided that the two
   shortest fit (beside a large and a medium there is never room for two: less than C/6 is left);
4. each bin, forward, takes the longest of everything left, again and again, while anything fits;
5. the rest goes, longest first, into the least loaded of the new bins, or opens one.

The lists are kept sorted and searched by bisection: O(n log n) comparisons.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from dataplane_client.packing._base import SequencePacker


class _Item(NamedTuple):
    length: int
    sequence: int


def _shortest_first(item: _Item) -> int:
    return item.length


def _longest_first(item: _Item) -> int:
    return -item.length


@dataclass
class _Bin:
    room: int
    items: list[int] = field(default_factory=list)

    def add(self, item: _Item) -> None:
        self.room -= item.length
        self.items.append(item.sequence)


def _pop_longest_that_fits(items: list[_Item], room: int) -> _Item | None:
    """Take out the first item not longer than room; items are longest first."""
    i = bisect_left(items, -room, key=_longest_first)
    return items.pop(i) if i < len(items) else None


def _add_mediums(bins: list[_Bin], medium: list[_Item]) -> None:
    for b in bins:
        if (item := _pop_longest_that_fits(medium, b.room)) is not None:
            b.add(item)


def _add_pairs_of_smalls(bins: list[_Bin], small: list[_Item]) -> None:
    for b in reversed(bins):
        if len(small) < 2 or small[0].length + small[1].length > b.room:
            continue
        b.add(small.pop(0))
        b.add(small.pop(bisect_right(small, b.room, key=_shortest_first) - 1))


def _fill(bins: list[_Bin], rest: list[_Item]) -> None:
    for b in bins:
        while (item := _pop_longest_that_fits(rest, b.room)) is not None:
            b.add(item)


def _pack_leftovers(items: list[_Item], capacity: int) -> list[list[int]]:
    """New bins by load, least first. Of equally loaded bins the one that reached its load first comes first."""
    bins: list[tuple[int, int, list[int]]] = []  # a heap of (load, time of the last addition, sequences)
    for time, item in enumerate(items):
        if bins and bins[0][0] + item.length <= capacity:
            load, _, sequences = bins[0]
            sequences.append(item.sequence)
            heapq.heapreplace(bins, (load + item.length, time, sequences))
        else:
            heapq.heappush(bins, (item.length, time, [item.sequence]))
    return [sequences for _, _, sequences in sorted(bins, key=itemgetter(0, 1))]


class ModifiedFirstFitDecreasingPacker(SequencePacker):
    """Lengths must be positive. The packing depends only on the lengths and their order."""

    def _pack(self, lengths: list[int]) -> list[list[int]]:
        if self.bin_capacity <= 0:
            raise ValueError(f"bin_capacity must be positive, got {self.bin_capacity}")
        if min(lengths) <= 0:
            i = next(i for i, length in enumerate(lengths) if length <= 0)
            raise ValueError(f"sequence lengths must be positive, got {lengths[i]} for sequence {i}")
        capacity = self.bin_capacity
        items = sorted(map(_Item, lengths, range(len(lengths))), key=_longest_first)  # equal ones as they came in
        medium = [item for item in items if capacity / 3 < item.length <= capacity / 2]
        small = [item for item in items if capacity / 6 < item.length <= capacity / 3]
        small.sort(key=_shortest_first)
        tiny = [item for item in items if item.length <= capacity / 6]
        bins = [_Bin(capacity - item.length, [item.sequence]) for item in items if item.length > capacity / 2]
        _add_mediums(bins, medium)
        _add_pairs_of_smalls(bins, small)
        rest = sorted(medium + small + tiny, key=_longest_first)
        _fill(bins, rest)
        return [b.items for b in bins] + _pack_leftovers(rest, capacity)

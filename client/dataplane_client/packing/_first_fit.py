"""First fit: each sequence goes into the earliest bin with room for it.

A tree of maxima over the bins' rooms finds the earliest bin, so packing n sequences takes O(n log n), not O(n^2).
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from dataplane_client.packing._base import SequencePacker


class _Rooms:
    """Room left in each of n bins, all empty at first; node k of the tree holds the larger of nodes 2k and 2k + 1."""

    def __init__(self, n: int, capacity: int) -> None:
        self._first_leaf = 1 << (n - 1).bit_length()
        self._tree = [capacity] * (2 * self._first_leaf)

    def take(self, length: int) -> int:
        """Put length into the earliest bin with room for it, which must exist; the bin's number."""
        tree = self._tree
        node = 1
        while node < self._first_leaf:
            node *= 2
            if tree[node] < length:
                node += 1
        leaf = node
        tree[node] -= length
        while node > 1:
            node //= 2
            tree[node] = max(tree[2 * node], tree[2 * node + 1])
        return leaf - self._first_leaf


def first_fit(lengths: list[int], order: Iterable[int], capacity: int) -> list[list[int]]:
    """Bins of the sequences of order (indices into lengths, none longer than capacity), placed one after another."""
    rooms = _Rooms(len(lengths), capacity)
    bins: list[list[int]] = []
    for i in order:
        b = rooms.take(lengths[i])
        if b == len(bins):  # bins beyond the last used one are empty, so the earliest with room opens in turn
            bins.append([])
        bins[b].append(i)
    return bins


class FirstFitDecreasingPacker(SequencePacker):
    """First fit, the longest sequence first (the later one on ties)."""

    def _pack(self, lengths: list[int]) -> list[list[int]]:
        order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i), reverse=True)
        return first_fit(lengths, order, self.bin_capacity)


class FirstFitShufflePacker(SequencePacker):
    """First fit in a random order: drawn by seed and lengths or, without a seed, from the global random module, so
    that random.seed() makes it repeatable.
    """

    def _pack(self, lengths: list[int]) -> list[list[int]]:
        order = list(range(len(lengths)))
        if self.seed is None:
            random.shuffle(order)
        else:
            random.Random(f"{self.seed} {lengths}").shuffle(order)  # noqa: S311  # an order, not a secret
        return first_fit(lengths, order, self.bin_capacity)

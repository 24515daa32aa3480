"""Exchanges between ranks bring units to the node of their rank. Ranks keep their sizes, and nearly their sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataplane_server.core.verbs.balance import split_by_weight
from dataplane_server.core.verbs.exchanges import move_home


class Split(NamedTuple):
    """shards: by rank. nodes: of ranks. weights, homes: of units."""

    nodes: list[int]
    weights: list[int]
    homes: list[int]
    shards: list[list[int]]

    def moved(self) -> list[list[int]]:
        return move_home(self.shards, np.array(self.weights, np.int64), np.array(self.homes, np.int64), self.nodes)

    def at_home(self, shards: list[list[int]]) -> int:
        pairs = zip(shards, self.nodes, strict=True)
        return sum(self.homes[unit] == node for shard, node in pairs for unit in shard)

    def sums(self, shards: list[list[int]]) -> list[int]:
        return [sum(max(self.weights[unit], 0) for unit in shard) for shard in shards]


@st.composite
def splits(draw: st.DrawFn, weights: st.SearchStrategy[int], nodes: st.SearchStrategy[int]) -> Split:
    """Balanced splits, whose ranks are on any nodes."""
    ranks = draw(st.lists(nodes, min_size=1, max_size=6))
    units = draw(st.lists(st.tuples(weights, st.integers(-1, 4)), min_size=1, max_size=60))
    of_units = [weight for weight, _ in units]
    shards = split_by_weight(np.array(of_units, np.int64), len(ranks))
    return Split(ranks, of_units, [home for _, home in units], shards)


NODES = st.integers(0, 3)
WEIGHTS = st.integers(-1, 5) | st.integers(90, 110) | st.integers(0, 10_000)


@given(splits(WEIGHTS, NODES))
def test_each_unit_has_one_rank_and_ranks_keep_their_sizes(split: Split) -> None:
    moved = split.moved()
    assert sorted(unit for shard in moved for unit in shard) == list(range(len(split.weights)))
    assert [len(shard) for shard in moved] == [len(shard) for shard in split.shards]
    assert all(shard == sorted(shard) for shard in moved)


@given(splits(WEIGHTS, NODES))
def test_sums_change_by_at_most_one_percent_of_the_mean_shard(split: Split) -> None:
    before, after = split.sums(split.shards), split.sums(split.moved())
    assert all(100 * len(before) * abs(now - then) <= sum(before) for now, then in zip(after, before, strict=True))


@given(splits(WEIGHTS, NODES))
def test_each_exchange_of_two_units_brings_one_home(split: Split) -> None:
    moved = split.moved()
    away = sum(len(set(now) - set(then)) for now, then in zip(moved, split.shards, strict=True))
    assert away <= 2 * (split.at_home(moved) - split.at_home(split.shards))


@given(splits(WEIGHTS, NODES))
def test_a_rank_without_node_keeps_its_units(split: Split) -> None:
    kept = [now == then for now, then, node in zip(split.moved(), split.shards, split.nodes, strict=True) if not node]
    assert all(kept)


@given(splits(st.just(5), st.integers(1, 3)))
def test_of_equal_units_as_many_are_at_home_as_can_be(split: Split) -> None:
    sizes = list(zip(map(len, split.shards), split.nodes, strict=True))
    room = {node: sum(size for size, of in sizes if of == node) for node in set(split.nodes)}
    assert split.at_home(split.moved()) == sum(min(split.homes.count(node), most) for node, most in room.items())


def test_most_units_of_many_lengths_are_at_home() -> None:
    random = np.random.default_rng(0)
    lengths = np.exp(random.normal(6.5, 0.8, 512)).astype(np.int64)
    nodes = [1 + rank // 8 for rank in range(16)]
    split = Split(nodes, lengths.tolist(), random.integers(1, 3, 512).tolist(), split_by_weight(lengths, 16))
    assert split.at_home(split.shards) < 300
    assert split.at_home(split.moved()) > 480

"""Splits between ranks, compared with every possible split, with a plain deal, and with the bounds of the method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.caller import int64

from dataplane_server.core.verbs.balance import split_by_weight, split_in_order

WEIGHTS = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 1 << 40)), max_size=60)
SHARDS = st.integers(1, 12)


def sums(weights: list[int], split: list[list[int]]) -> list[int]:
    return [sum(weights[position] for position in shard) for shard in split]


def sizes_of_an_even_split(n: int, shards: int) -> list[int]:
    return sorted(n // shards + (shard < n % shards) for shard in range(shards))


def dealt_sums(weights: list[int], shards: int) -> list[int]:
    """The rows by descending weight, dealt round and round."""
    line = sorted(weights, reverse=True)
    return [sum(line[shard::shards]) for shard in range(shards)]


def least_fullest(weights: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    """The fullest shard of the best of all splits into shards of these sizes."""
    if len(sizes) == 1:
        return sum(weights)
    return min(
        max(sum(weights[i] for i in first), least_fullest(rest, sizes[1:])) for first, rest in ways(weights, sizes[0])
    )


def ways(weights: tuple[int, ...], size: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for first in combinations(range(len(weights)), size):
        yield first, tuple(weight for i, weight in enumerate(weights) if i not in first)


# -- in order ----------------------------------------------------------------------------------------------------------


@given(n=st.integers(0, 200), shards=SHARDS)
def test_runs_follow_one_another_and_differ_by_one_at_most(n: int, shards: int) -> None:
    split = split_in_order(n, shards)
    assert [position for run in split for position in run] == list(range(n))
    assert sorted(map(len, split)) == sizes_of_an_even_split(n, shards)


# -- by weight ---------------------------------------------------------------------------------------------------------


@given(weights=WEIGHTS, shards=SHARDS)
def test_every_position_has_one_place_and_shards_have_as_many_as_each_other(weights: list[int], shards: int) -> None:
    """Positions ascend, and shards are in the order of their first; empty ones come last."""
    split = split_by_weight(int64(weights), shards)
    assert split == sorted(map(sorted, split), key=lambda shard: shard[:1] or [len(weights)])
    assert Counter(position for shard in split for position in shard) == Counter(range(len(weights)))
    assert sorted(map(len, split)) == sizes_of_an_even_split(len(weights), shards)


@given(weights=WEIGHTS, shards=SHARDS)
def test_no_split_is_worse_than_a_deal_of_the_sorted_rows(weights: list[int], shards: int) -> None:
    split = split_by_weight(int64(weights), shards)
    assert max(sums(weights, split)) <= max(dealt_sums(weights, shards))


@given(weights=WEIGHTS, shards=SHARDS)
def test_no_shard_is_further_above_the_mean_than_rows_of_like_length_differ(weights: list[int], shards: int) -> None:
    """Rows of like length are adjacent in the sorted rows, one for each shard."""
    line = sorted(weights, reverse=True) + [0] * (-len(weights) % shards)
    widest = max((line[i] - line[i + shards - 1] for i in range(0, len(line), shards)), default=0)
    fullest = max(sums(weights, split_by_weight(int64(weights), shards)))
    assert fullest * shards <= sum(weights) + widest * shards


@given(weights=WEIGHTS, shards=SHARDS)
def test_numbers_may_differ_if_the_caller_does_without_even_ones(weights: list[int], shards: int) -> None:
    """No shard is further above the mean than the heaviest position: the bound of placing the heaviest first."""
    split = split_by_weight(int64(weights), shards, even=False)
    assert sorted(position for shard in split for position in shard) == list(range(len(weights)))
    assert len(split) == shards
    assert max(sums(weights, split)) * shards <= sum(weights) + max(weights, default=0) * (shards - 1)


@pytest.mark.parametrize(("n", "shards"), [(4, 2), (7, 2), (8, 2), (7, 3), (9, 3)])
def test_small_splits_are_the_best_there_are_or_nearly(n: int, shards: int) -> None:
    random = np.random.default_rng(n * shards)
    sizes = tuple(sizes_of_an_even_split(n, shards))
    excess = []
    for _ in range(20):
        weights = random.lognormal(6, 1, n).astype(np.int64).tolist()
        fullest = max(sums(weights, split_by_weight(int64(weights), shards)))
        excess.append(fullest / least_fullest(tuple(weights), sizes) - 1)
    assert min(excess) >= 0
    assert np.mean(excess) < 0.005
    assert max(excess) < 0.07


@pytest.mark.parametrize(("n", "shards"), [(128, 16), (512, 16), (1024, 8), (1024, 64)])
def test_rollouts_of_all_lengths_are_split_almost_as_evenly_as_is_possible(n: int, shards: int) -> None:
    """Log-normal lengths up to a context of 32,768 tokens."""
    for seed in range(5):
        drawn = np.random.default_rng(seed).lognormal(7, 1, n)
        weights = np.minimum(drawn, 32_768).astype(np.int64).tolist()
        line = sorted(weights)
        possible = max(sum(weights) / shards, line[-1] + sum(line[: n // shards - 1]))
        fullest = max(sums(weights, split_by_weight(int64(weights), shards)))
        assert fullest <= possible * 1.003

"""The packers against the rules of packing written down in the plainest way, on random lengths with many ties."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane_client.packing import PackingAlgorithm, get_packer

Lengths = list[int]
Bins = list[list[int]]


def load(b: list[int], lengths: Lengths) -> int:
    return sum(lengths[i] for i in b)


def naive_concatenative(lengths: Lengths, capacity: int) -> Bins:
    bins: Bins = []
    for i in range(len(lengths)):
        if bins and load(bins[-1], lengths) + lengths[i] <= capacity:
            bins[-1].append(i)
        else:
            bins.append([i])
    return bins


def naive_first_fit(order: list[int], lengths: Lengths, capacity: int) -> Bins:
    bins: Bins = []
    for i in order:
        for b in bins:
            if load(b, lengths) + lengths[i] <= capacity:
                b.append(i)
                break
        else:
            bins.append([i])
    return bins


def naive_decreasing(lengths: Lengths, capacity: int) -> Bins:
    order = [i for _, i in sorted((length, i) for i, length in enumerate(lengths))]
    order.reverse()
    return naive_first_fit(order, lengths, capacity)


def naive_shuffle(lengths: Lengths, capacity: int) -> Bins:
    order = list(range(len(lengths)))
    random.shuffle(order)
    return naive_first_fit(order, lengths, capacity)


def naive_modified(lengths: Lengths, capacity: int) -> Bins:
    everyone = list(range(len(lengths)))
    large = [i for i in everyone if lengths[i] * 2 > capacity]
    medium = [i for i in everyone if i not in large and lengths[i] * 3 > capacity]
    small = [i for i in everyone if i not in large + medium and lengths[i] * 6 > capacity]
    tiny = [i for i in everyone if i not in large + medium + small]
    bins = [[i] for i in sorted(large, key=lambda i: (-lengths[i], i))]
    medium.sort(key=lambda i: (-lengths[i], i))
    small.sort(key=lambda i: (lengths[i], i))
    for b in bins:
        move_first_that_fits(medium, b, lengths, capacity)
    for b in reversed(bins):
        has_medium = len(b) > 1
        if not has_medium and len(small) >= 2 and load(b + small[:2], lengths) <= capacity:
            b.append(small.pop(0))
            small.reverse()
            move_first_that_fits(small, b, lengths, capacity)
            small.reverse()
    rest = sorted(medium + small + tiny, key=lambda i: (-lengths[i], i))
    for b in bins:
        while move_first_that_fits(rest, b, lengths, capacity):
            pass
    return bins + naive_least_loaded(rest, lengths, capacity)


def move_first_that_fits(candidates: list[int], b: list[int], lengths: Lengths, capacity: int) -> bool:
    for i in candidates:
        if load([*b, i], lengths) <= capacity:
            b.append(i)
            candidates.remove(i)
            return True
    return False


def naive_least_loaded(rest: list[int], lengths: Lengths, capacity: int) -> Bins:
    bins: Bins = []
    for i in rest:
        b = [i]
        if bins and load(bins[0], lengths) + lengths[i] <= capacity:
            b = [*bins.pop(0), i]
        place = 0
        while place < len(bins) and load(bins[place], lengths) <= load(b, lengths):
            place += 1
        bins.insert(place, b)
    return bins


def naive_adjusted(bins: Bins, min_bins: int, multiple: int) -> Bins | None:
    bins = [list(b) for b in bins]
    target = max(len(bins), min_bins)
    while target % multiple:
        target += 1
    if sum(len(b) for b in bins) < target:
        return None
    sources = sorted(range(len(bins)), key=lambda b: (len(bins[b]), b))
    sources.reverse()
    for _ in range(target - len(bins)):
        while len(bins[sources[0]]) == 1:
            sources.pop(0)
        bins.append([bins[sources[0]].pop(-1)])
    return bins


ORACLES: dict[PackingAlgorithm, Callable[[Lengths, int], Bins]] = {
    PackingAlgorithm.CONCATENATIVE: naive_concatenative,
    PackingAlgorithm.FIRST_FIT_DECREASING: naive_decreasing,
    PackingAlgorithm.FIRST_FIT_SHUFFLE: naive_shuffle,
    PackingAlgorithm.MODIFIED_FIRST_FIT_DECREASING: naive_modified,
}


@pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
def test_random_packings_equal_those_of_the_plain_rules(algorithm: PackingAlgorithm) -> None:
    rng = random.Random(17)
    for seed in range(3000):
        capacity = rng.choice([6, 12, 13, 31, 100, 997])
        lengths = [rng.randint(1, rng.choice([capacity, capacity // 2])) for _ in range(rng.randint(1, 40))]
        min_bins, multiple = rng.choice([(0, 1), (0, 1), (rng.randint(0, 8), rng.randint(1, 4))])
        random.seed(seed)
        expected = naive_adjusted(ORACLES[algorithm](lengths, capacity), min_bins, multiple)
        random.seed(seed)
        packer = get_packer(algorithm, capacity, min_bin_count=min_bins, bin_count_multiple=multiple)
        if expected is None:
            with pytest.raises(ValueError, match="Cannot create"):
                packer.pack(lengths)
        else:
            assert packer.pack(lengths) == expected, (capacity, lengths, min_bins, multiple)


@settings(max_examples=200, deadline=None)
@given(
    algorithm=st.sampled_from(PackingAlgorithm),
    any_length=st.lists(st.integers(1, 48), max_size=8),
    short=st.lists(st.integers(1, 12), min_size=24, max_size=40),  # enough to fill any number of bins asked for
    min_bins=st.integers(0, 10),
    multiple=st.integers(1, 4),
)
def test_every_packing_holds_each_sequence_once_in_suitably_many_bins_with_room(
    algorithm: PackingAlgorithm, any_length: Lengths, short: Lengths, min_bins: int, multiple: int
) -> None:
    lengths = any_length + short
    bins = get_packer(algorithm, 48, min_bin_count=min_bins, bin_count_multiple=multiple).pack(lengths)
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    assert all(b and load(b, lengths) <= 48 for b in bins)
    assert len(bins) >= min_bins
    assert len(bins) % multiple == 0

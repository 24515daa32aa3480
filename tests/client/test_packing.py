"""Packing against its rules written down in the plainest way, with the packers' fixed vectors, errors and metrics."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane_client.packing import ConcatenativePacker, PackingAlgorithm, PackingMetrics, get_packer

MFFD = PackingAlgorithm.MODIFIED_FIRST_FIT_DECREASING
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


# -- against the plain rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
@given(
    capacity=st.sampled_from([6, 12, 13, 31, 100, 997]),
    shares=st.lists(st.floats(0, 1), max_size=40),
    longest=st.sampled_from([1, 2]),
    min_bins=st.integers(0, 8),
    multiple=st.sampled_from([1, 1, 2, 3, 4]),
    seed=st.integers(0, 9),
)
def test_any_packing_is_that_of_the_plain_rules(
    algorithm: PackingAlgorithm,
    capacity: int,
    shares: list[float],
    longest: int,
    min_bins: int,
    multiple: int,
    seed: int,
) -> None:
    """shares: the lengths, as parts of the capacity or of half of it, so that many are equal."""
    lengths = [max(1, int(share * capacity / longest)) for share in shares]
    random.seed(seed)
    expected = naive_adjusted(ORACLES[algorithm](lengths, capacity), min_bins, multiple) if lengths else []
    random.seed(seed)
    packer = get_packer(algorithm, capacity, min_bin_count=min_bins, bin_count_multiple=multiple)
    if expected is None:
        with pytest.raises(ValueError, match=f" {len(lengths)} sequences"):
            packer.pack(lengths)
        return
    bins = packer.pack(lengths)
    assert bins == expected
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    assert all(b and load(b, lengths) <= capacity for b in bins)
    assert not bins or (len(bins) >= min_bins and len(bins) % multiple == 0)


def test_with_a_seed_equal_lengths_are_packed_alike_whatever_the_process_draws() -> None:
    lengths = list(range(1, 30))
    bins = []
    for drawn in (1, 2):
        random.seed(drawn)
        before = random.getstate()
        bins.append(get_packer("first_fit_shuffle", 40, seed=3).pack(lengths))
        assert random.getstate() == before
    first, second = bins
    assert first == second != get_packer("first_fit_shuffle", 40, seed=4).pack(lengths)


# -- fixed vectors -----------------------------------------------------------------------------------------------------


def test_concatenative_closes_a_bin_that_holds_the_most_sequences_allowed() -> None:
    class Pairs(ConcatenativePacker):
        max_sequences_per_bin = 2

    assert Pairs(100).pack([10, 10, 10, 90, 10, 10, 10]) == [[0, 1], [2, 3], [4, 5], [6]]


@pytest.mark.parametrize("algorithm", [a for a in PackingAlgorithm if a is not MFFD])
def test_an_empty_sequence_takes_no_room(algorithm: PackingAlgorithm) -> None:
    assert sorted(get_packer(algorithm, 5).pack([0, 5, 0])[0]) == [0, 1, 2]


@pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
def test_lengths_in_an_array_of_small_integers_do_not_overflow(algorithm: PackingAlgorithm) -> None:
    lengths = [200, 100, 50, 150]
    for b in get_packer(algorithm, 250).pack(np.array(lengths, np.uint8)):  # type: ignore[arg-type]
        assert load(b, lengths) <= 250


# -- refusals ----------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "more bins than sequences": (
        lambda: get_packer("concatenative", 100, bin_count_multiple=4).pack([10, 20, 30]),
        "4 bins .* 3 sequences",
    ),
    "MFFD of an empty sequence": (lambda: get_packer(MFFD, 100).pack([3, 0]), "got 0 for sequence 1"),
    "MFFD without room": (lambda: get_packer(MFFD, 0).pack([0]), "bin_capacity .* 0"),
    "min_bin_count": (lambda: get_packer("concatenative", 9, min_bin_count=-1), "min_bin_count"),
    "multiple": (lambda: get_packer("concatenative", 9, bin_count_multiple=0), "bin_count_multiple"),
}


@pytest.mark.parametrize(("call", "fact"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_packed_is_refused(call: Callable[[], object], fact: str) -> None:
    with pytest.raises(ValueError, match=fact):
        call()


@pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
def test_lengths_below_zero_or_above_the_capacity_are_refused(algorithm: PackingAlgorithm) -> None:
    packer = get_packer(algorithm, 100)
    with pytest.raises(ValueError, match=r"101 .* 100 .*sequence 1"):
        packer.pack([100, 101])
    with pytest.raises(ValueError, match="-5 for sequence 1"):
        packer.pack([3, -5])


@pytest.mark.parametrize("unknown", ["best_fit", "", 3, None, ["concatenative"]])
def test_an_unknown_algorithm_is_refused_with_the_list_of_known_ones(unknown: object) -> None:
    with pytest.raises(ValueError, match=r"concatenative.*modified_first_fit_decreasing"):
        get_packer(unknown, 100)  # type: ignore[arg-type]


# -- metrics and cost --------------------------------------------------------------------------------------------------


def test_statistics_of_one_packing() -> None:
    metrics = PackingMetrics()
    assert metrics.calculate_stats_only([60, 40, 30], [[0, 1], [2]], 100) == {
        "num_sequences": 3,
        "num_bins": 2,
        "total_sequence_length": 130,
        "total_bin_capacity": 200,
        "total_waste": 70,
        "average_utilization": pytest.approx(0.65),
        "waste_ratio": pytest.approx(0.35),
        "bin_balance": pytest.approx(1 - (2 * 0.35**2) ** 0.5 / 0.65),  # utilizations 1.0 and 0.3
        "theoretical_min_bins": 2,
        "bin_efficiency": 1.0,
    }
    single, empty = ([60, 30], [[0, 1]]), ([0, 0], [[0], [1]])
    assert [metrics.calculate_stats_only(*packing, 100)["bin_balance"] for packing in (single, empty)] == [1.0, 1.0]
    metrics.update([60, 40, 30], [[0, 1], [2]], 100)
    lines = dict(line.split() for line in str(metrics).splitlines())
    assert (lines["num_packings"], lines["num_bins"], lines["average_utilization"]) == ("1", "2", "0.65")


def test_metrics_add_up_over_packings_until_reset() -> None:
    packer = get_packer("concatenative", 100, collect_metrics=True)
    metrics = packer.metrics
    assert get_packer("concatenative", 100).metrics is None
    assert metrics is not None
    packer.pack([60, 60])
    packer.pack([50, 50, 50])
    total = metrics.get_aggregated_stats()
    assert (total["num_sequences"], total["num_bins"], total["theoretical_min_bins"]) == (5, 4, 4)
    assert [total["total_waste"], total["waste_ratio"]] == pytest.approx([130, 130 / 400])
    assert total["bin_balance"] == pytest.approx((1.0 + 1 - (2 * 0.25**2) ** 0.5 / 0.75) / 2)
    metrics.reset()
    assert metrics.get_aggregated_stats()["num_sequences"] == 0

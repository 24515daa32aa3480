"""Packing: the packers' fixed vectors, the bin-count adjustment, the factory, the errors and the metrics."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

from dataplane_client.packing import (
    ConcatenativePacker,
    FirstFitDecreasingPacker,
    FirstFitShufflePacker,
    ModifiedFirstFitDecreasingPacker,
    PackingAlgorithm,
    PackingMetrics,
    SequencePacker,
    get_packer,
)

MIXED = [25, 35, 45, 55, 65, 75, 85, 95, 15, 25, 35, 45, 55, 65, 75, 85, 95]


@pytest.mark.parametrize(
    ("algorithm", "bins"),
    [
        pytest.param(
            PackingAlgorithm.CONCATENATIVE,
            [[0, 1], [2, 3], [4], [5], [6], [7], [8, 9, 10], [11, 12], [13], [14], [15], [16]],
            id="concatenative",
        ),
        pytest.param(
            PackingAlgorithm.FIRST_FIT_DECREASING,
            [[16], [7], [15, 8], [6], [14, 9], [5, 0], [13, 10], [4, 1], [12, 11], [3, 2]],
            id="first_fit_decreasing",
        ),
        pytest.param(
            PackingAlgorithm.MODIFIED_FIRST_FIT_DECREASING,
            [[7], [16], [6, 8], [15], [5, 0], [14, 9], [4, 1], [13, 10], [3, 2], [12, 11]],
            id="modified_first_fit_decreasing",
        ),
    ],
)
def test_mixed_lengths_pack_into_the_bins_of_the_fixed_vector(
    algorithm: PackingAlgorithm, bins: list[list[int]]
) -> None:
    assert get_packer(algorithm, 100).pack(MIXED) == bins


def test_concatenative_closes_a_bin_that_holds_the_most_sequences_allowed() -> None:
    class Pairs(ConcatenativePacker):
        max_sequences_per_bin = 2

    assert Pairs(100).pack([10, 10, 10, 90, 10, 10, 10]) == [[0, 1], [2, 3], [4, 5], [6]]


def test_concatenative_sets_no_limit_on_sequences_by_default() -> None:
    assert ConcatenativePacker(100).pack([1] * 100) == [list(range(100))]


def test_first_fit_shuffle_repeats_itself_for_one_seed_and_differs_for_another() -> None:
    packer = FirstFitShufflePacker(100)
    packings = []
    for seed in (1, 1, 2):
        random.seed(seed)
        packings.append(packer.pack(MIXED))
    assert packings[0] == packings[1] != packings[2]


@pytest.mark.parametrize(
    ("min_bin_count", "multiple", "bins"),
    [
        pytest.param(None, None, [[0, 1, 2], [3, 4, 5], [6, 7, 8]], id="as_packed"),
        pytest.param(3, 3, [[0, 1, 2], [3, 4, 5], [6, 7, 8]], id="already_there"),
        pytest.param(7, None, [[0, 1, 2], [3], [6], [8], [7], [5], [4]], id="at_least_7"),
        pytest.param(None, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8]], id="multiple_of_4"),
        pytest.param(9, 3, [[0], [3], [6], [8], [7], [5], [4], [2], [1]], id="one_sequence_each"),
    ],
)
def test_bins_are_split_until_their_number_suits(
    min_bin_count: int | None, multiple: int | None, bins: list[list[int]]
) -> None:
    packer = ModifiedFirstFitDecreasingPacker(100, min_bin_count=min_bin_count, bin_count_multiple=multiple)
    assert packer.pack([30] * 9) == bins


def test_the_fullest_bin_by_count_gives_up_its_sequences_first() -> None:
    packer = ConcatenativePacker(100, min_bin_count=4)
    assert packer.pack([50, 50, 20, 20, 20, 40]) == [[0, 1], [2, 3], [5], [4]]


def test_more_bins_than_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="Cannot create 4 bins with only 3 sequences"):
        get_packer("concatenative", 100, bin_count_multiple=4).pack([10, 20, 30])


@pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
def test_no_sequences_give_no_bins(algorithm: PackingAlgorithm) -> None:
    assert get_packer(algorithm, 100, min_bin_count=4, bin_count_multiple=4).pack([]) == []


@pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
def test_a_sequence_longer_than_a_bin_is_refused(algorithm: PackingAlgorithm) -> None:
    with pytest.raises(ValueError, match=r"Sequence length 101 exceeds bin capacity 100 \(sequence 1\)"):
        get_packer(algorithm, 100).pack([100, 101])


@pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
def test_a_negative_length_is_refused(algorithm: PackingAlgorithm) -> None:
    with pytest.raises(ValueError, match="sequence lengths must not be negative, got -5 for sequence 1"):
        get_packer(algorithm, 100).pack([3, -5])


@pytest.mark.parametrize(
    "algorithm", [a for a in PackingAlgorithm if a is not PackingAlgorithm.MODIFIED_FIRST_FIT_DECREASING]
)
def test_an_empty_sequence_takes_no_room(algorithm: PackingAlgorithm) -> None:
    assert sorted(get_packer(algorithm, 5).pack([0, 5, 0])[0]) == [0, 1, 2]


def test_modified_first_fit_decreasing_refuses_an_empty_sequence() -> None:
    with pytest.raises(ValueError, match="sequence lengths must be positive, got 0 for sequence 1"):
        ModifiedFirstFitDecreasingPacker(100).pack([3, 0])


def test_modified_first_fit_decreasing_refuses_bins_without_room() -> None:
    with pytest.raises(ValueError, match="bin_capacity must be positive, got 0"):
        ModifiedFirstFitDecreasingPacker(0).pack([0])


@pytest.mark.parametrize("name", ["first_fit_decreasing", "FIRST_FIT_DECREASING", "First_Fit_Decreasing"])
def test_a_packer_is_found_by_name_in_any_case(name: str) -> None:
    assert isinstance(get_packer(name, 100), FirstFitDecreasingPacker)


@pytest.mark.parametrize(
    ("algorithm", "packer"),
    [
        (PackingAlgorithm.CONCATENATIVE, ConcatenativePacker),
        (PackingAlgorithm.FIRST_FIT_DECREASING, FirstFitDecreasingPacker),
        (PackingAlgorithm.FIRST_FIT_SHUFFLE, FirstFitShufflePacker),
        (PackingAlgorithm.MODIFIED_FIRST_FIT_DECREASING, ModifiedFirstFitDecreasingPacker),
    ],
)
def test_each_algorithm_has_its_packer(algorithm: PackingAlgorithm, packer: type[SequencePacker]) -> None:
    assert type(get_packer(algorithm, 100)) is packer


@pytest.mark.parametrize("unknown", ["best_fit", "", 3, None, ["concatenative"]])
def test_an_unknown_algorithm_is_refused_with_the_list_of_known_ones(unknown: object) -> None:
    with pytest.raises(ValueError, match=r"Unknown packing algorithm.*concatenative.*modified_first_fit_decreasing"):
        get_packer(unknown, 100)  # type: ignore[arg-type]


def test_a_negative_min_bin_count_is_refused() -> None:
    with pytest.raises(ValueError, match="min_bin_count must be nonnegative"):
        get_packer("concatenative", 100, min_bin_count=-1)


def test_a_bin_count_multiple_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="bin_count_multiple must be positive"):
        get_packer("concatenative", 100, bin_count_multiple=0)


def test_statistics_of_one_packing() -> None:
    stats = PackingMetrics().calculate_stats_only([60, 40, 30], [[0, 1], [2]], 100)
    assert stats == {
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


@pytest.mark.parametrize(
    ("lengths", "bins"),
    [pytest.param([60, 30], [[0, 1]], id="a_single_bin"), pytest.param([0, 0], [[0], [1]], id="empty_sequences")],
)
def test_bins_that_cannot_differ_are_balanced(lengths: list[int], bins: list[list[int]]) -> None:
    assert PackingMetrics().calculate_stats_only(lengths, bins, 100)["bin_balance"] == 1.0


def test_metrics_add_up_over_packings_until_reset() -> None:
    packer = get_packer("concatenative", 100, collect_metrics=True)
    metrics = packer.metrics
    assert metrics is not None
    packer.pack([60, 60])
    packer.pack([50, 50, 50])
    total = metrics.get_aggregated_stats()
    assert (total["num_sequences"], total["num_bins"], total["theoretical_min_bins"]) == (5, 4, 4)
    assert [total["total_waste"], total["waste_ratio"]] == pytest.approx([130, 130 / 400])
    assert total["bin_balance"] == pytest.approx((1.0 + 1 - (2 * 0.25**2) ** 0.5 / 0.75) / 2)
    metrics.reset()
    assert metrics.get_aggregated_stats()["num_sequences"] == 0


def test_metrics_print_as_one_line_a_key() -> None:
    metrics = PackingMetrics()
    metrics.update([60, 40, 30], [[0, 1], [2]], 100)
    lines = dict(line.split() for line in str(metrics).splitlines())
    assert (lines["num_packings"], lines["num_bins"], lines["average_utilization"]) == ("1", "2", "0.65")


def test_no_metrics_are_kept_unless_asked_for() -> None:
    assert get_packer("concatenative", 100).metrics is None


@pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
def test_ten_thousand_sequences_pack_well_under_a_second(algorithm: PackingAlgorithm) -> None:
    rng = random.Random(0)
    lengths = [rng.randint(1, 2000) for _ in range(10_000)]
    started = time.process_time()
    get_packer(algorithm, 8192).pack(lengths)
    assert time.process_time() - started < 1.0


def test_importing_packing_does_not_load_torch() -> None:
    code = "import sys, dataplane_client.packing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

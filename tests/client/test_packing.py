"""Packing: the packers' fixed vectors, the bin-count adjustment, the factory, the errors and the metrics."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

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


VECTORS = {
    "concatenative": [[0, 1], [2, 3], [4], [5], [6], [7], [8, 9, 10], [11, 12], [13], [14], [15], [16]],
    "first_fit_decreasing": [[16], [7], [15, 8], [6], [14, 9], [5, 0], [13, 10], [4, 1], [12, 11], [3, 2]],
    "modified_first_fit_decreasing": [[7], [16], [6, 8], [15], [5, 0], [14, 9], [4, 1], [13, 10], [3, 2], [12, 11]],
}


@pytest.mark.parametrize(("algorithm", "bins"), VECTORS.items())
def test_mixed_lengths_pack_into_the_bins_of_the_fixed_vector(algorithm: str, bins: list[list[int]]) -> None:
    assert get_packer(algorithm, 100).pack(MIXED) == bins


def test_concatenative_closes_a_bin_that_holds_the_most_sequences_allowed() -> None:
    class Pairs(ConcatenativePacker):
        max_sequences_per_bin = 2

    assert Pairs(100).pack([10, 10, 10, 90, 10, 10, 10]) == [[0, 1], [2, 3], [4, 5], [6]]


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
        (None, None, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        (3, 3, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        (7, None, [[0, 1, 2], [3], [6], [8], [7], [5], [4]]),
        (None, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8]]),
        (9, 3, [[0], [3], [6], [8], [7], [5], [4], [2], [1]]),
    ],
    ids=["as packed", "already there", "at least 7", "multiple of 4", "one sequence each"],
)
def test_bins_are_split_until_their_number_suits(
    min_bin_count: int | None, multiple: int | None, bins: list[list[int]]
) -> None:
    packer = ModifiedFirstFitDecreasingPacker(100, min_bin_count=min_bin_count, bin_count_multiple=multiple)
    assert packer.pack([30] * 9) == bins


@pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
def test_no_sequences_give_no_bins(algorithm: PackingAlgorithm) -> None:
    assert get_packer(algorithm, 100, min_bin_count=4, bin_count_multiple=4).pack([]) == []


@pytest.mark.parametrize(
    "algorithm", [a for a in PackingAlgorithm if a is not PackingAlgorithm.MODIFIED_FIRST_FIT_DECREASING]
)
def test_an_empty_sequence_takes_no_room(algorithm: PackingAlgorithm) -> None:
    assert sorted(get_packer(algorithm, 5).pack([0, 5, 0])[0]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("algorithm", "packer"),
    [
        (PackingAlgorithm.CONCATENATIVE, ConcatenativePacker),
        (PackingAlgorithm.FIRST_FIT_DECREASING, FirstFitDecreasingPacker),
        (PackingAlgorithm.FIRST_FIT_SHUFFLE, FirstFitShufflePacker),
        (PackingAlgorithm.MODIFIED_FIRST_FIT_DECREASING, ModifiedFirstFitDecreasingPacker),
        ("FIRST_FIT_DECREASING", FirstFitDecreasingPacker),
        ("First_Fit_Decreasing", FirstFitDecreasingPacker),
    ],
)
def test_each_algorithm_has_its_packer_named_in_any_case(algorithm: Any, packer: type[SequencePacker]) -> None:
    found = get_packer(algorithm, 100)
    assert (type(found), found.metrics) == (packer, None)


EMPTY = "sequence lengths must be positive, got 0 for sequence 1"
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "more bins than sequences": (
        lambda: get_packer("concatenative", 100, bin_count_multiple=4).pack([10, 20, 30]),
        "Cannot create 4 bins with only 3 sequences",
    ),
    "MFFD of an empty sequence": (lambda: ModifiedFirstFitDecreasingPacker(100).pack([3, 0]), EMPTY),
    "MFFD without room": (
        lambda: ModifiedFirstFitDecreasingPacker(0).pack([0]),
        "bin_capacity must be positive, got 0",
    ),
    "min_bin_count": (lambda: get_packer("concatenative", 9, min_bin_count=-1), "min_bin_count must be nonnegative"),
    "multiple": (lambda: get_packer("concatenative", 9, bin_count_multiple=0), "bin_count_multiple must be positive"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_packed_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
def test_lengths_below_zero_or_above_the_capacity_are_refused(algorithm: PackingAlgorithm) -> None:
    packer = get_packer(algorithm, 100)
    with pytest.raises(ValueError, match=r"Sequence length 101 exceeds bin capacity 100 \(sequence 1\)"):
        packer.pack([100, 101])
    with pytest.raises(ValueError, match="sequence lengths must not be negative, got -5 for sequence 1"):
        packer.pack([3, -5])


@pytest.mark.parametrize("unknown", ["best_fit", "", 3, None, ["concatenative"]])
def test_an_unknown_algorithm_is_refused_with_the_list_of_known_ones(unknown: object) -> None:
    with pytest.raises(ValueError, match=r"Unknown packing algorithm.*concatenative.*modified_first_fit_decreasing"):
        get_packer(unknown, 100)  # type: ignore[arg-type]


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
    assert metrics is not None
    packer.pack([60, 60])
    packer.pack([50, 50, 50])
    total = metrics.get_aggregated_stats()
    assert (total["num_sequences"], total["num_bins"], total["theoretical_min_bins"]) == (5, 4, 4)
    assert [total["total_waste"], total["waste_ratio"]] == pytest.approx([130, 130 / 400])
    assert total["bin_balance"] == pytest.approx((1.0 + 1 - (2 * 0.25**2) ** 0.5 / 0.75) / 2)
    metrics.reset()
    assert metrics.get_aggregated_stats()["num_sequences"] == 0


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

"""Statistics of how well packings fill their bins. Costs O(sequences) per packing and keeps only sums."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TypedDict


class PackingStats(TypedDict):
    """Counts are sequences and bins, totals are tokens, the rest are fractions (0 when there is nothing to divide).

    num_sequences, num_bins: how many were packed into how many.
    total_sequence_length, total_bin_capacity, total_waste: tokens packed, tokens there is room for, the difference.
    average_utilization, waste_ratio: used and unused share of that room.
    bin_balance: 1 - stdev / mean of the bins' utilizations; 1.0 for a single bin, negative for very uneven ones.
    theoretical_min_bins: the bins needed if sequences could be cut.
    bin_efficiency: theoretical_min_bins / num_bins.
    """

    num_sequences: int
    num_bins: int
    total_sequence_length: int
    total_bin_capacity: int
    total_waste: int
    average_utilization: float
    waste_ratio: float
    bin_balance: float
    theoretical_min_bins: int
    bin_efficiency: float


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _balance(loads: list[int]) -> float:
    mean = fmean(loads) if loads else 0.0
    if len(loads) < 2 or mean == 0:
        return 1.0
    return 1.0 - stdev(loads) / mean


def _stats(sequences: int, bins: int, length: int, capacity: int, min_bins: int, balance: float) -> PackingStats:
    return PackingStats(
        num_sequences=sequences,
        num_bins=bins,
        total_sequence_length=length,
        total_bin_capacity=capacity,
        total_waste=capacity - length,
        average_utilization=_ratio(length, capacity),
        waste_ratio=_ratio(capacity - length, capacity),
        bin_balance=balance,
        theoretical_min_bins=min_bins,
        bin_efficiency=_ratio(min_bins, bins),
    )


class PackingMetrics:
    """Running statistics over packings; str() gives them as a table, one line a key."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._packings = self._sequences = self._bins = self._length = self._capacity = self._min_bins = 0
        self._balance_sum = 0.0

    def calculate_stats_only(
        self, sequence_lengths: Sequence[int], bins: Sequence[Sequence[int]], bin_capacity: int
    ) -> PackingStats:
        """Statistics of one packing (bins hold indices into sequence_lengths), which is not recorded."""
        loads = [sum(sequence_lengths[i] for i in b) for b in bins]
        return _stats(
            sequences=len(sequence_lengths),
            bins=len(bins),
            length=sum(loads),
            capacity=len(bins) * bin_capacity,
            min_bins=-(-sum(loads) // bin_capacity) if bin_capacity else 0,
            balance=_balance(loads),
        )

    def update(self, sequence_lengths: Sequence[int], bins: Sequence[Sequence[int]], bin_capacity: int) -> PackingStats:
        """Record one packing and return its own statistics."""
        stats = self.calculate_stats_only(sequence_lengths, bins, bin_capacity)
        self._packings += 1
        self._sequences += stats["num_sequences"]
        self._bins += stats["num_bins"]
        self._length += stats["total_sequence_length"]
        self._capacity += stats["total_bin_capacity"]
        self._min_bins += stats["theoretical_min_bins"]
        self._balance_sum += stats["bin_balance"]
        return stats

    def get_aggregated_stats(self) -> PackingStats:
        """Sums over the recorded packings, ratios of those sums, and the mean of their balances (1.0 when none)."""
        balance = self._balance_sum / self._packings if self._packings else 1.0
        return _stats(self._sequences, self._bins, self._length, self._capacity, self._min_bins, balance)

    def __str__(self) -> str:
        rows = {"num_packings": self._packings, **self.get_aggregated_stats()}
        return "\n".join(
            f"{key:<22}{value:>16.4g}" if isinstance(value, float) else f"{key:<22}{value:>16}"
            for key, value in rows.items()
        )

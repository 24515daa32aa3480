"""The base of packers: check the lengths, pack, adjust the number of bins, record metrics."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence

from dataplane_client.packing._metrics import PackingMetrics


class SequencePacker(ABC):
    """Packs sequence ids into bins whose summed lengths never exceed bin_capacity (tokens).

    After the algorithm has run, bins are split until there are at least min_bin_count of them and their number is a
    multiple of bin_count_multiple. metrics accumulates over pack calls and is None unless collect_metrics is set.
    With a seed, equal lengths are packed alike in every process, also by a packer that draws.
    """

    def __init__(
        self,
        bin_capacity: int,
        collect_metrics: bool = False,
        min_bin_count: int | None = None,
        bin_count_multiple: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.seed = seed
        self.bin_capacity = bin_capacity
        self.collect_metrics = collect_metrics
        self.min_bin_count = 0 if min_bin_count is None else min_bin_count
        self.bin_count_multiple = 1 if bin_count_multiple is None else bin_count_multiple
        if self.min_bin_count < 0:
            raise ValueError(f"min_bin_count must be nonnegative, got {min_bin_count}")
        if self.bin_count_multiple < 1:
            raise ValueError(f"bin_count_multiple must be positive, got {bin_count_multiple}")
        self.metrics = PackingMetrics() if collect_metrics else None

    def pack(self, sequence_lengths: Sequence[int]) -> list[list[int]]:
        """Each inner list is one bin and holds indices into sequence_lengths; every index occurs once, no bin is empty.

        No sequences give no bins, whatever min_bin_count says. Raises ValueError for a length that no bin can hold, and
        when there are fewer sequences than the bins asked for.
        """
        lengths = list(map(operator.index, sequence_lengths))  # those of NumPy would overflow
        if not lengths:
            return []
        self._check_lengths(lengths)
        bins = _split_bins(self._pack(lengths), at_least=self.min_bin_count, multiple_of=self.bin_count_multiple)
        if self.metrics is not None:
            self.metrics.update(lengths, bins, self.bin_capacity)
        return bins

    def _check_lengths(self, lengths: list[int]) -> None:
        for i, length in enumerate(lengths):
            if length > self.bin_capacity:
                raise ValueError(f"Sequence length {length} exceeds bin capacity {self.bin_capacity} (sequence {i})")
            if length < 0:
                raise ValueError(f"sequence lengths must not be negative, got {length} for sequence {i}")

    @abstractmethod
    def _pack(self, lengths: list[int]) -> list[list[int]]:
        """The algorithm. Returns non-empty bins for a non-empty list of checked lengths."""


def _split_bins(bins: list[list[int]], *, at_least: int, multiple_of: int) -> list[list[int]]:
    """Bins followed by new one-sequence bins, so that there are max(len(bins), at_least) rounded up to multiple_of.

    Takes the last sequences of the bin with the most sequences (the later one on ties) until it has one, then of the
    next. A sequence in a bin of its own never exceeds the capacity, so the result is as valid as the packing before.
    Raises ValueError when there are fewer sequences than bins.
    """
    target = -(-max(len(bins), at_least) // multiple_of) * multiple_of
    sequences = sum(map(len, bins))
    if sequences < target:
        raise ValueError(
            f"Cannot create {target} bins with only {sequences} sequences: "
            f"at least {at_least} bins and a multiple of {multiple_of} were asked for"
        )
    adjusted = [list(b) for b in bins]
    by_count = sorted(adjusted, key=len)  # stable, so that popping from the end takes the later bin on ties
    while len(adjusted) < target:
        while len(by_count[-1]) == 1:
            by_count.pop()
        adjusted.append([by_count[-1].pop()])
    return adjusted

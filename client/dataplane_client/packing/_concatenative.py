"""Packs in arrival order: the cheapest rule, and the only one that keeps the order of the sequences."""

from __future__ import annotations

from typing import ClassVar

from dataplane_client.packing._base import SequencePacker


class ConcatenativePacker(SequencePacker):
    """Fills one bin after another; a bin is closed when the next sequence would overflow it."""

    max_sequences_per_bin: ClassVar[int] = -1
    """Also close a bin that holds this many sequences; -1 sets no such limit. Meant to be set in a subclass."""

    def _pack(self, lengths: list[int]) -> list[list[int]]:
        bins: list[list[int]] = [[]]
        load = 0
        for i, length in enumerate(lengths):
            if load + length > self.bin_capacity or len(bins[-1]) == self.max_sequences_per_bin:
                bins.append([])
                load = 0
            bins[-1].append(i)
            load += length
        return bins

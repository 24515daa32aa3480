"""Packs sequences of different lengths into bins of one capacity (one bin = one microbatch row).

Pure Python: importing this package loads no torch, so that drivers and planners can pack without it.
"""

from __future__ import annotations

from enum import Enum

from dataplane_client.packing._base import SequencePacker
from dataplane_client.packing._concatenative import ConcatenativePacker
from dataplane_client.packing._first_fit import FirstFitDecreasingPacker, FirstFitShufflePacker
from dataplane_client.packing._metrics import PackingMetrics, PackingStats
from dataplane_client.packing._modified_first_fit import ModifiedFirstFitDecreasingPacker

__all__ = [
    "ConcatenativePacker",
    "FirstFitDecreasingPacker",
    "FirstFitShufflePacker",
    "ModifiedFirstFitDecreasingPacker",
    "PackingAlgorithm",
    "PackingMetrics",
    "PackingStats",
    "SequencePacker",
    "get_packer",
]


class PackingAlgorithm(Enum):
    """Packers by name, as configuration files spell them."""

    CONCATENATIVE = "concatenative"
    FIRST_FIT_DECREASING = "first_fit_decreasing"
    FIRST_FIT_SHUFFLE = "first_fit_shuffle"
    MODIFIED_FIRST_FIT_DECREASING = "modified_first_fit_decreasing"


_PACKERS: dict[PackingAlgorithm, type[SequencePacker]] = {
    PackingAlgorithm.CONCATENATIVE: ConcatenativePacker,
    PackingAlgorithm.FIRST_FIT_DECREASING: FirstFitDecreasingPacker,
    PackingAlgorithm.FIRST_FIT_SHUFFLE: FirstFitShufflePacker,
    PackingAlgorithm.MODIFIED_FIRST_FIT_DECREASING: ModifiedFirstFitDecreasingPacker,
}


def get_packer(
    algorithm: PackingAlgorithm | str,
    bin_capacity: int,
    collect_metrics: bool = False,
    min_bin_count: int | None = None,
    bin_count_multiple: int | None = None,
    seed: int | None = None,
) -> SequencePacker:
    """The packer of an algorithm, given as a member or as a member's name in any case; ValueError for an unknown one.

    The other arguments are those of SequencePacker.
    """
    member = PackingAlgorithm.__members__.get(algorithm.upper()) if isinstance(algorithm, str) else algorithm
    if not isinstance(member, PackingAlgorithm):
        available = ", ".join(m.name.lower() for m in PackingAlgorithm)
        raise ValueError(f"Unknown packing algorithm: {algorithm!r}. Available algorithms: {available}")
    return _PACKERS[member](bin_capacity, collect_metrics, min_bin_count, bin_count_multiple, seed)

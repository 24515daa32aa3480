"""Packs sequences of different lengths into bins of one capacity (one bin = one microbatch row).

Pure Python: importing this package loads no torch, so that drivers and planners can pack without it.
"""

from __future__ import annotations

from dataplane_client.packing._base import SequencePacker
from dataplane_client.packing._concatenative import ConcatenativePacker
from dataplane_client.packing._factory import PackingAlgorithm, get_packer
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

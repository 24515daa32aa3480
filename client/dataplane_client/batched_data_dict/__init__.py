"""BatchedDataDict: named columns with one entry per row, and methods to slice, shard, gather and iterate them."""

from __future__ import annotations

from dataplane_client.batched_data_dict._args import DynamicBatchingArgs, SequencePackingArgs
from dataplane_client.batched_data_dict._batch import BatchedDataDict, SlicedDataDict

__all__ = ["BatchedDataDict", "DynamicBatchingArgs", "SequencePackingArgs", "SlicedDataDict"]

"""BatchedDataDict: named columns with one entry per row, with methods to slice, shard, gather and iterate them."""

from __future__ import annotations

from dataplane_client.batched_data_dict._args import DynamicBatchingArgs, SequencePackingArgs
from dataplane_client.batched_data_dict._batch import BatchedDataDict, SlicedDataDict
from dataplane_client.batched_data_dict._materialize import materialize

__all__ = ["BatchedDataDict", "DynamicBatchingArgs", "SequencePackingArgs", "SlicedDataDict", "materialize"]

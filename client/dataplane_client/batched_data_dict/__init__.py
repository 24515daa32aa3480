"""BatchedDataDict: named columns with one entry a row, and the ways to slice, deal out, gather and iterate them."""

from __future__ import annotations

from dataplane_client.batched_data_dict._args import DynamicBatchingArgs, SequencePackingArgs
from dataplane_client.batched_data_dict._batch import BatchedDataDict, SlicedDataDict

__all__ = ["BatchedDataDict", "DynamicBatchingArgs", "SequencePackingArgs", "SlicedDataDict"]

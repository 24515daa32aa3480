"""Batches as NumPy arrays of bytes, which Ray hands from process to process through shared memory.

Ray serialises torch tensors through copies of their bytes, but maps arrays where they lie, read-only. A mapped array
that is written to ends the process, and torch has no read-only tensors, so the receiver copies once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter._collective_message import CollectiveMessage, pack_message, unpack_message
from trainer_adapter.sharding import PLAN_KEYS

_CPU = torch.device("cpu")


class ArrayBatch(NamedTuple):
    """A BatchedDataDict as a parcel, and the plan of its microbatches."""

    header: bytes
    buffers: list[npt.NDArray[np.uint8]]
    plan: list[Any]


def to_arrays(value: Any) -> Any:
    """A batch as arrays, which share the memory of its tensors on the CPU; anything else as it is. TypeError, naming
    the column, for a column that `_exchange` does not carry.
    """
    if not isinstance(value, BatchedDataDict):
        return value
    header, buffers = pack_message(value, _CPU)
    return ArrayBatch(header, [buffer.numpy() for buffer in buffers], [getattr(value, name) for name in PLAN_KEYS])


def from_arrays(value: Any) -> Any:
    """The inverse of to_arrays, with memory of its own."""
    if not isinstance(value, ArrayBatch):
        return value
    buffers = [torch.from_numpy(buffer.copy()) for buffer in value.buffers]
    batch: BatchedDataDict[Any] = BatchedDataDict(unpack_message(CollectiveMessage(value.header, buffers)))
    for name, part in zip(PLAN_KEYS, value.plan, strict=True):
        setattr(batch, name, part)
    return batch

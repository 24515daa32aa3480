"""Batches as NumPy arrays of bytes, which Ray passes between processes through shared memory.

Ray copies the bytes of torch tensors when it serialises them, but maps arrays in place, read-only. Writing to a mapped
array ends the process, and torch has no read-only tensors, so the receiver copies once.
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
    """A BatchedDataDict as a header and buffers (see CollectiveMessage), and the plan of its microbatches."""

    header: bytes
    buffers: list[npt.NDArray[np.uint8]]
    plan: list[Any]


def to_arrays(value: Any) -> Any:
    """Convert a batch to arrays, which share the memory of its tensors on the CPU; return any other value as it is.

    TypeError naming the column for one that `_exchange` does not support.
    """
    if not isinstance(value, BatchedDataDict):
        return value
    header, buffers = pack_message(value, _CPU)
    return ArrayBatch(header, [buffer.numpy() for buffer in buffers], [getattr(value, name) for name in PLAN_KEYS])


def from_arrays(value: Any) -> Any:
    """The inverse of to_arrays; the result has its own memory."""
    if not isinstance(value, ArrayBatch):
        return value
    buffers = [torch.from_numpy(buffer.copy()) for buffer in value.buffers]
    batch: BatchedDataDict[Any] = BatchedDataDict(unpack_message(CollectiveMessage(value.header, buffers)))
    for name, part in zip(PLAN_KEYS, value.plan, strict=True):
        setattr(batch, name, part)
    return batch

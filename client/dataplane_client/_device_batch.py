"""Batches on their way to an accelerator, through pinned memory.

Copies from pinned memory to a CUDA device run at the bus's speed and beside other work; torch keeps pinned memory that
was freed for the next batch, and reuses none of it before the copies out of it are done. Ragged values cross the bus
without their padding, which is added on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from dataplane_client._jagged import RowSplit, build_jagged, split_rows
from dataplane_client._object_leaves import unpack_objects
from dataplane_client._placement import Destination, PlacedColumn, adjoining
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.codec import materialize
from dataplane_client.columns_layout import Layout
from dataplane_client.row_kernels import ByteArray
from dataplane_client.wire_columns import tensor_on


def _pinned(nbytes: int) -> ByteArray:
    pinned: ByteArray = torch.empty(nbytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).numpy()
    return pinned


STAGED = Destination(adjoining, _pinned)
"""Columns for batch_on_device."""


def batch_on_device(
    columns: Sequence[PlacedColumn],
    n_rows: int,
    device: torch.device,
    layout: Layout,
    pad_values: Mapping[str, int | float],
    pad_to_seqlen: int,
) -> BatchedDataDict[Any]:
    """What ``materialize`` makes of the columns, on a device; tensors may still be on their way there."""
    splits: dict[bytes, RowSplit] = {}
    leaves = {column.layout.name: _leaf(column, n_rows, device, splits) for column in columns}
    return materialize(TensorDict(leaves, batch_size=[n_rows]), layout, pad_values, pad_to_seqlen)


def _leaf(
    column: PlacedColumn, n_rows: int, device: torch.device, splits: dict[bytes, RowSplit]
) -> torch.Tensor | NonTensorStack:
    layout, lengths = column.layout, column.layout.lengths
    if lengths is None:
        return tensor_on(layout, column.values, (n_rows, *layout.row_shape)).to(device, non_blocking=True)
    if layout.kind == "object":
        return NonTensorStack(*map(NonTensorData, unpack_objects(layout.name, lengths, column.values.data)))
    entries = int(np.sum(lengths))
    values = tensor_on(layout, column.values, (entries, *layout.row_shape)).to(device, non_blocking=True)
    return build_jagged(values, splits.setdefault(lengths.tobytes(), split_rows(lengths, device)))

"""The batches that reads become: where the values of each column go, and the tensors that are made of them.

- `to_tensors` and `jagged_batch`: rows adjoin, in the caller's memory (COPIES) or in the server's (VIEWS).
- `PaddedBatch`: values go straight into rectangles, without ragged tensors in between. The result equals that of
  ``materialize`` in layout "padded".
- `batch_on_device`: values go through pinned memory (STAGED) to an accelerator. Copies from pinned memory to a CUDA
  device run at the bus's speed and beside other work. Torch caches pinned memory that was freed, and does not reuse it
  before the copies out of it are done. Ragged values cross the bus without padding, which is added on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from dataplane_client._common.arrays import ByteArray, Int64Array, ObjectArray
from dataplane_client._memory.placement import Destination, Padding, PlacedColumn, adjoining, blame_server
from dataplane_client._values.codec import materialize
from dataplane_client._values.columns_layout import ColumnLayout, Layout, WireColumn, even_layout
from dataplane_client._values.dtypes import torch_dtype
from dataplane_client._values.jagged import JaggedRows, RowSplit, build_jagged, split_rows
from dataplane_client._values.object_leaves import object_array, object_leaf, unpack_objects
from dataplane_client._values.padding import pad_element, pad_jagged
from dataplane_client._values.rows import bits
from dataplane_client._values.wire_columns import decode_columns, decode_leaves, tensor_on
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.errors import InvalidArgumentError, PreconditionError

_UNDECODABLE = "the server sent a column that cannot be decoded"


def in_layout(columns: Sequence[PlacedColumn], layout: Layout) -> Sequence[PlacedColumn]:
    """The columns, whose rows adjoin; with layout "auto", ragged ones whose rows have one length count as dense."""
    return [replace(column, layout=even_layout(column.layout)) for column in columns] if layout == "auto" else columns


# -- on the host, rows adjoining ---------------------------------------------------------------------------------------

COPIES = Destination(adjoining)
"""Columns in memory of the caller."""

VIEWS = Destination(adjoining, views=True)
"""Columns in memory that the server shares, where possible."""


def to_tensors(columns: Sequence[PlacedColumn], n_rows: int) -> TensorDict:
    """The columns as a TensorDict of batch size [n_rows]. Raises InternalError for invalid values."""
    with blame_server(_UNDECODABLE):
        return decode_columns([_wire_column(column) for column in columns], n_rows)


def jagged_batch(columns: Sequence[PlacedColumn], n_rows: int) -> BatchedDataDict[Any]:
    """The columns as the batch that ``materialize`` makes of them in layout "jagged"."""
    with blame_server(_UNDECODABLE):
        leaves = decode_leaves([_wire_column(column) for column in columns], n_rows)
    return BatchedDataDict(
        {
            name: leaf if isinstance(leaf, torch.Tensor) else object_array(name, leaf, n_rows)
            for name, leaf in leaves.items()
        }
    )


def _wire_column(column: PlacedColumn) -> WireColumn:
    layout = column.layout
    return WireColumn(layout.name, layout.kind, layout.dtype, layout.row_shape, layout.lengths, column.values.data)


# -- on the host, padded -----------------------------------------------------------------------------------------------


class PaddedBatch:
    """How a batch is padded; the arguments are those of ``materialize``."""

    def __init__(self, pad_values: Mapping[str, int | float], pad_to_seqlen: int) -> None:
        self._pad_values = pad_values
        self._least_width = pad_to_seqlen

    def place(self, layout: ColumnLayout) -> Padding | None:
        """Raises ValueError for a pad value that the field's dtype cannot hold."""
        if layout.kind == "jagged" and layout.lengths is not None:
            width = max(int(layout.lengths.max(initial=0)), self._least_width)
        elif layout.kind == "dense" and layout.row_shape and layout.row_shape[0] < self._least_width:
            width = self._least_width
        else:
            return None
        return Padding(width, self._element(layout))

    def _element(self, layout: ColumnLayout) -> bytes:
        if layout.name not in self._pad_values:
            return bytes(layout.item_size)  # 0 is all zero bits in every element type
        dtype = torch_dtype(layout.dtype, layout.name)
        return bits(pad_element(layout.name, dtype, self._pad_values[layout.name])).numpy().tobytes()

    def batch(self, columns: Sequence[PlacedColumn], n_rows: int) -> BatchedDataDict[Any]:
        """The batch. Raises InternalError, naming the field, for invalid values."""
        with blame_server(_UNDECODABLE):
            return BatchedDataDict({column.layout.name: _padded_leaf(column, n_rows) for column in columns})


def _padded_leaf(column: PlacedColumn, n_rows: int) -> torch.Tensor | ObjectArray:
    layout = column.layout
    if layout.kind == "object" and layout.lengths is not None:
        return object_array(layout.name, unpack_objects(layout.name, layout.lengths, column.values.data), n_rows)
    row_shape = layout.row_shape if column.width is None else (column.width, *layout.entry_shape)
    return tensor_on(layout, column.values, (n_rows, *row_shape))


# -- on an accelerator -------------------------------------------------------------------------------------------------


def _allocate_pinned(nbytes: int) -> ByteArray:
    pinned: ByteArray = torch.empty(nbytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).numpy()
    return pinned


STAGED = Destination(adjoining, _allocate_pinned)
"""Columns for batch_on_device."""


def parsed_device(device: torch.device | str, where: str) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidArgumentError(f"{where}: {device!r} is not a device such as 'cpu' or 'cuda:0'") from None


def checked_device(device: torch.device | str, where: str) -> torch.device:
    """The device, if this process can use it. Raises InvalidArgumentError or PreconditionError."""
    found = parsed_device(device, where)
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        why = "was built without CUDA" if torch.version.cuda is None else f"finds {torch.cuda.device_count()} of them"
        raise PreconditionError(f"{where}: the device {str(found)!r} cannot be used here: torch {why}")
    return found


def batch_on_device(
    columns: Sequence[PlacedColumn],
    n_rows: int,
    device: torch.device,
    layout: Layout,
    pad_values: Mapping[str, int | float],
    pad_to_seqlen: int,
) -> BatchedDataDict[Any]:
    """The batch that ``materialize`` makes of the columns, on a device; copies to it may still be under way, and the
    host has waited for none.
    """
    splits: dict[bytes, RowSplit] = {}

    def ragged(name: str, values: torch.Tensor, lengths: Int64Array) -> torch.Tensor:
        if layout == "padded":
            rows = JaggedRows(values, np.cumsum(lengths) - lengths, lengths)
            return pad_jagged(name, rows, pad_values.get(name, 0), pad_to_seqlen)
        key = lengths.tobytes()
        if key not in splits:
            splits[key] = split_rows(lengths, device)
        return build_jagged(values, splits[key])

    leaves = {column.layout.name: _leaf_on_device(column, n_rows, device, ragged) for column in columns}
    return materialize(TensorDict(leaves, batch_size=[n_rows]), layout, pad_values, pad_to_seqlen)


def _leaf_on_device(
    column: PlacedColumn,
    n_rows: int,
    device: torch.device,
    ragged: Callable[[str, torch.Tensor, Int64Array], torch.Tensor],
) -> torch.Tensor | NonTensorStack | NonTensorData:
    layout, lengths = column.layout, column.layout.lengths
    if lengths is None:
        return tensor_on(layout, column.values, (n_rows, *layout.row_shape)).to(device, non_blocking=True)
    if layout.kind == "object":
        return object_leaf(unpack_objects(layout.name, lengths, column.values.data))
    entries = int(np.sum(lengths))
    values = tensor_on(layout, column.values, (entries, *layout.row_shape)).to(device, non_blocking=True)
    return ragged(layout.name, values, lengths)

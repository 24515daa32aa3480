"""The batches that reads become: where the values of each column go, and the tensors that are made of them.

- `to_tensors` and `jagged_batch`: rows adjoin, in the caller's memory (COPIES) or in the server's (VIEWS).
- `PaddedBatch`: values go straight into rectangles, without ragged tensors in between. The result equals that of
  ``materialize`` in layout "padded".
- `DeviceBatch`: values go through pinned memory to an accelerator. Copies from pinned memory to a CUDA device run at
  the bus's speed and beside other work. Torch caches pinned memory that was freed, and does not reuse it before the
  copies out of it are done. Ragged values cross the bus without padding, which is added on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from dataplane_client._common.arrays import ByteArray, Int64Array, ObjectArray
from dataplane_client._memory.placement import Destination, Padding, PlacedColumn, adjoining, blame_server
from dataplane_client._values.columns_layout import ColumnLayout, Layout, WireColumn, even_layout
from dataplane_client._values.dtypes import parsed_device, torch_dtype
from dataplane_client._values.jagged import RowSplit, build_jagged, row_bounds
from dataplane_client._values.object_leaves import object_array, object_leaf, unpack_objects
from dataplane_client._values.padding import pad_element
from dataplane_client._values.rows import RowIndex, bits, pad_by_index, row_index
from dataplane_client._values.warm_buffers import take
from dataplane_client._values.wire_columns import decode_columns, decode_leaves, tensor_on
from dataplane_client.batched_data_dict import BatchedDataDict, materialize
from dataplane_client.errors import PreconditionError

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


def checked_device(device: torch.device | str, where: str) -> torch.device:
    """The device, if this process can use it. Raises InvalidArgumentError or PreconditionError."""
    found = parsed_device(device, where)
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        why = "was built without CUDA" if torch.version.cuda is None else f"finds {torch.cuda.device_count()} of them"
        raise PreconditionError(f"{where}: the device {str(found)!r} cannot be used here: torch {why}")
    return found


_ALIGNED = 64
"""Bytes. Every element type can be viewed there."""


class _Block:
    """Pinned memory of several columns, which one copy sends to a device."""

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = np.cumsum([-(-size // _ALIGNED) * _ALIGNED for size in sizes], dtype=np.int64).tolist()
        self._spans = [slice(at, at + size) for at, size in zip([0, *ends], sizes, strict=False)]
        n_bytes = ends[-1] if ends else 0
        self._host = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())

    def parts(self) -> list[ByteArray]:
        """The memory of each column on the host."""
        memory: ByteArray = self._host.numpy()
        return [memory[span] for span in self._spans]

    def sent_to(self, device: torch.device) -> list[torch.Tensor]:
        """The bytes of each column on the device; the copy may still be under way."""
        if not len(self._host):
            return [torch.empty(0, dtype=torch.uint8, device=device) for _ in self._spans]
        sent = self._host.to(device, non_blocking=True)
        return [sent[span] for span in self._spans]


class DeviceBatch:
    """A batch on an accelerator; the arguments beside the device are those of ``materialize``.

    Two blocks cross the bus, however many fields there are: one of all ragged values, after a table with the bounds of
    their rows (int64, one line for each set of lengths), and one of all dense values, which live on when ragged values
    have been padded. On the device every ragged field is padded by one gather.
    """

    def __init__(
        self, device: torch.device, layout: Layout, pad_values: Mapping[str, int | float], pad_to_seqlen: int
    ) -> None:
        self._device = device
        self._layout = layout
        self._pad_values = pad_values
        self._least_width = pad_to_seqlen
        self.destination = Destination(adjoining, self._allocate)
        self._lengths: dict[bytes, Int64Array] = {}
        self._ragged = self._dense = _Block([])

    def _allocate(self, layouts: Sequence[ColumnLayout], sizes: Sequence[int]) -> list[ByteArray]:
        """Memory in two new blocks, also when the read is repeated; objects, which stay on the host, have their own."""
        columns = list(zip(layouts, sizes, strict=True))
        ragged = [size for layout, size in columns if layout.kind == "jagged"]
        lengths_of = (layout.lengths for layout in layouts if layout.kind == "jagged")
        self._lengths = {lengths.tobytes(): lengths for lengths in lengths_of if lengths is not None}
        bounds = [row_bounds(lengths).view(np.uint8) for lengths in self._lengths.values()]
        self._ragged = _Block([sum(len(line) for line in bounds), *ragged])
        self._dense = _Block([size for layout, size in columns if layout.kind == "dense"])
        table, *ragged_parts = self._ragged.parts()
        table[:] = np.concatenate([*bounds, table[:0]])
        parts = {"jagged": iter(ragged_parts), "dense": iter(self._dense.parts())}
        return [next(parts[layout.kind]) if layout.kind in parts else take(size) for layout, size in columns]

    def of(self, columns: Sequence[PlacedColumn], n_rows: int) -> BatchedDataDict[Any]:
        """The batch that ``materialize`` makes of the columns read last. Copies to the device may still be under way,
        and the host has waited for none.
        """
        table, *ragged = self._ragged.sent_to(self._device)
        lines = zip(self._lengths.items(), table.view(torch.int64).reshape(-1, n_rows + 1), strict=True)
        splits = {key: RowSplit(lengths, bounds) for (key, lengths), bounds in lines}
        indices = {key: self._index(split) for key, split in splits.items()} if self._layout == "padded" else {}
        sent = {"jagged": iter(ragged), "dense": iter(self._dense.sent_to(self._device))}
        leaves: dict[str, torch.Tensor | NonTensorStack | NonTensorData] = {}
        for column in columns:
            name, lengths = column.layout.name, column.layout.lengths
            (placed,) = in_layout([column], self._layout)
            with blame_server(_UNDECODABLE):
                if column.layout.kind == "object" and lengths is not None:
                    leaves[name] = object_leaf(unpack_objects(name, lengths, column.values.data))
                    continue
                values = _viewed(placed, n_rows, next(sent[column.layout.kind]))
            if placed.layout.lengths is None or lengths is None:
                leaves[name] = values
            elif self._layout == "padded":
                leaves[name] = self._padded(name, values, indices[lengths.tobytes()])
            else:
                leaves[name] = build_jagged(values, splits[lengths.tobytes()])
        layout: Layout = "padded" if self._layout == "padded" else "jagged"  # even rows have been found on the host
        return materialize(TensorDict(leaves, batch_size=[n_rows]), layout, self._pad_values, self._least_width)

    def _index(self, split: RowSplit) -> RowIndex:
        width = max(int(split.lengths.max(initial=0)), self._least_width)
        return row_index(split.offsets[:-1], split.offsets.diff(), width)

    def _padded(self, name: str, values: torch.Tensor, index: RowIndex) -> torch.Tensor:
        element = pad_element(name, values.dtype, self._pad_values.get(name, 0))
        return pad_by_index(bits(values), index, bits(element)).view(values.dtype)


def _viewed(column: PlacedColumn, n_rows: int, sent: torch.Tensor) -> torch.Tensor:
    """The bytes of a column on the device as its tensor: all entries of ragged rows, one after the other."""
    layout = column.layout
    count = n_rows if layout.lengths is None else int(np.sum(layout.lengths))
    on_host = tensor_on(layout, column.values, (count, *layout.row_shape))  # checks them
    return sent.view(on_host.dtype).reshape(on_host.shape)

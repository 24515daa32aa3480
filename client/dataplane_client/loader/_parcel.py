"""Batches from process to process, in memory that both map.

A parcel is a memory file without a name: the size of its head, the head (a msgpack map), and the bytes of the columns.
Its descriptor travels over a socket; the receiver's tensors live in the mapping, without another copy, and the kernel
frees the memory with its last holder, however that one died. Nothing is pickled.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from dataplane_client._column_messages import int64_bytes, int64s
from dataplane_client._placement import PlacedColumn
from dataplane_client._read_batches import jagged_batch
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.columns_layout import ColumnLayout, WireColumn
from dataplane_client.row_kernels import ByteArray
from dataplane_client.wire_columns import encode_columns

_ALIGNMENT = 64
_SIZE_BYTES = 8


def pack(head: Mapping[str, Any], batch: Mapping[str, Any]) -> int:
    """A descriptor of the parcel, for the caller to close. Raises OSError when the system has no memory left."""
    columns = encode_columns(batch)
    packed = msgpack.packb({"head": head, "columns": [_column_message(column) for column in columns]})
    starts, size = _places(columns, _SIZE_BYTES + len(packed))
    fd = os.memfd_create("dataplane-batch")
    try:
        os.ftruncate(fd, size)
        with mmap.mmap(fd, size) as memory:
            memory[: _SIZE_BYTES + len(packed)] = len(packed).to_bytes(_SIZE_BYTES, "little") + packed
            for start, column in zip(starts, columns, strict=True):
                memory[start : start + column.size_bytes] = column.values
    except BaseException:
        os.close(fd)
        raise
    return fd


def unpack(fd: int, n_rows_of: str) -> tuple[dict[str, Any], BatchedDataDict[Any]]:
    """The head and the batch of a parcel, whose descriptor is closed; n_rows_of: the entry of the head that is as long
    as the batch.
    """
    try:
        memory = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(fd)
    values: ByteArray = np.frombuffer(memory, np.uint8)
    end = _SIZE_BYTES + int.from_bytes(memory[:_SIZE_BYTES], "little")
    message = msgpack.unpackb(memory[_SIZE_BYTES:end])
    head, n_rows = message["head"], len(message["head"][n_rows_of])
    layouts = [_layout(column) for column in message["columns"]]
    placed = []
    for layout in layouts:
        start = _aligned(end)
        end = start + layout.size_of(n_rows)
        placed.append(PlacedColumn(layout, values[start:end], None))
    return head, jagged_batch(placed, n_rows)


def _places(columns: list[WireColumn], end: int) -> tuple[list[int], int]:
    """Where each column begins, and where the last one ends."""
    starts = []
    for column in columns:
        starts.append(_aligned(end))
        end = starts[-1] + column.size_bytes
    return starts, end


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _column_message(column: WireColumn) -> list[object]:
    lengths = None if column.lengths is None else int64_bytes(column.lengths)
    return [column.name, column.kind, column.dtype, list(column.row_shape), lengths]


def _layout(message: list[Any]) -> ColumnLayout:
    name, kind, dtype, row_shape, lengths = message
    return ColumnLayout(name, kind, dtype, tuple(row_shape), None if lengths is None else int64s(lengths))

"""A read that goes straight into the rectangles of a batch: what is wanted of each column, and tensors on what came.

Equal to ``materialize`` of the same columns in layout "padded", without the ragged tensors in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dataplane_client._object_leaves import ObjectArray, object_array, unpack_objects
from dataplane_client._padding import pad_element
from dataplane_client._placement import Padding, PlacedColumn, decoding
from dataplane_client._rows import bits
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.columns_layout import ITEM_SIZES, ColumnLayout
from dataplane_client.dtypes import torch_dtype
from dataplane_client.wire_columns import tensor_on


class PaddedBatch:
    """How a batch is to be padded; its arguments are those of ``materialize``."""

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
            return bytes(ITEM_SIZES[layout.dtype])  # 0 is all zero bits in every element type
        dtype = torch_dtype(layout.dtype, layout.name)
        return bits(pad_element(layout.name, dtype, self._pad_values[layout.name])).numpy().tobytes()

    def batch(self, columns: Sequence[PlacedColumn], n_rows: int) -> BatchedDataDict[Any]:
        """The batch. Raises InternalError, naming the field, for values that are none of the field's."""
        with decoding():
            return BatchedDataDict({column.layout.name: _leaf(column, n_rows) for column in columns})


def _leaf(column: PlacedColumn, n_rows: int) -> torch.Tensor | ObjectArray:
    layout = column.layout
    if layout.kind == "object" and layout.lengths is not None:
        return object_array(layout.name, unpack_objects(layout.name, layout.lengths, column.values.data), n_rows)
    if column.width is None:
        return tensor_on(layout, column.values, (n_rows, *layout.row_shape))
    trailing = layout.row_shape[1:] if layout.kind == "dense" else layout.row_shape
    return tensor_on(layout, column.values, (n_rows, column.width, *trailing))

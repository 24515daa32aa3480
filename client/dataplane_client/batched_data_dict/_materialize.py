"""The batch that readers get: a TensorDict's columns as rectangles, or as they came.

On the CPU all fields of a call are copied together, on several threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from dataplane_client._common.arguments import checked_choice
from dataplane_client._common.arrays import ObjectArray
from dataplane_client._values.columns_layout import Layout
from dataplane_client._values.jagged import even_rows, is_ragged_later, read_jagged, without_rows
from dataplane_client._values.object_leaves import count_rows, is_object_leaf, object_rows
from dataplane_client._values.padding import pad_every_dim, pad_jagged, widen
from dataplane_client._values.row_kernels import RowCopy, copy_rows
from dataplane_client.batched_data_dict._batch import BatchedDataDict


def materialize(
    td: TensorDictBase,
    layout: Layout = "padded",
    pad_value_dict: Mapping[str, int | float] | None = None,
    pad_to_seqlen: int = 0,
) -> BatchedDataDict[Any]:
    """The batch for a trainer: the TensorDict's top-level fields in their order.

    - Nested tensors become ``(N, longest row, ...)`` in layout "padded", padded on the right with the field's entry in
      pad_value_dict (0 by default); rows that differ in several dims are padded in each, as
      ``torch.nested.to_padded_tensor`` does. They stay unchanged in layout "jagged", and in layout "auto" unless all
      rows have one shape: then they become dense.
    - With pad_to_seqlen > 0, padded and rectangular tensors of 2 or more dims whose dim 1 is smaller are padded to that
      width. This does not know which dims are token dims: features ``(N, 2, 5)`` become ``(N, pad_to_seqlen, 5)``.
    - Objects become object arrays ``(N,)``; one value without rows becomes the value of every row.
    - Other values pass through without a copy.

    Gradients flow through. Raises ValueError for an unknown layout or a pad value that the field's dtype cannot hold,
    and TypeError for nested TensorDicts.
    """
    checked_choice("layout", layout, Layout, "materialize")
    pad_values = pad_value_dict or {}
    columns: dict[str, torch.Tensor | ObjectArray] = {}
    copies: list[RowCopy] = []
    for name, leaf in td.items():
        if is_object_leaf(leaf):
            columns[name] = object_rows(name, leaf, _rows_of(td, leaf))
        elif isinstance(leaf, torch.Tensor):
            columns[name] = _materialize_tensor(name, leaf, layout, pad_values.get(name, 0), pad_to_seqlen, copies)
        else:
            raise TypeError(f"field {name!r}: unexpected leaf type {type(leaf).__name__}")
    copy_rows(copies)
    return BatchedDataDict(columns)


def _rows_of(td: TensorDictBase, leaf: object) -> int:
    if td.batch_dims:
        return int(td.batch_size[0])
    rows = count_rows(leaf)
    return 1 if rows is None else rows


def _materialize_tensor(
    name: str, leaf: torch.Tensor, layout: Layout, pad_value: float, pad_to_seqlen: int, later: list[RowCopy]
) -> torch.Tensor:
    if leaf.layout is torch.jagged and not leaf.size(0) and layout != "jagged":
        leaf = without_rows(leaf)
    if leaf.is_nested and layout == "auto":
        leaf = even_rows(leaf, name)
    if leaf.is_nested and layout == "padded":
        if is_ragged_later(leaf):
            return pad_every_dim(name, leaf.unbind(), pad_value, pad_to_seqlen)
        return pad_jagged(name, read_jagged(leaf, name), pad_value, pad_to_seqlen, later)
    if not leaf.is_nested and leaf.dim() >= 2 and leaf.shape[1] < pad_to_seqlen:
        return widen(name, leaf, pad_value, pad_to_seqlen, later)
    return leaf

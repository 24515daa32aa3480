"""Conversion between the rectangular tensors of trainers and the ragged layout of the wire.

Writers strip padding before a put (``pack_jagged_fields``, ``pack_per_token_field``), so it is neither stored nor sent.
Readers get rectangles back from ``materialize``. A *per-token* field has one entry per token in
dim 1. After packing, all per-token fields of a batch have the same row lengths, so they are padded to the same width,
and the same offsets tensor, so they can be combined element by element.

``N`` is the number of rows, ``S`` the padded width. Lengths are integers of shape ``(N,)``: a list, an array, or a
tensor on any device; they are copied to the host once per call.

On the CPU all fields of a call are copied together, on several threads. Results of 256 KiB and more use memory of the
pool in ``warm_buffers``; as with every tensor made of an array, their storage cannot be resized.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase

from dataplane_client._common.arrays import Int64Array, ObjectArray
from dataplane_client._values.jagged import (
    PaddedRows,
    RowSplit,
    build_jagged,
    read_jagged,
    split_like,
    split_rows,
)
from dataplane_client._values.object_leaves import count_rows, counted
from dataplane_client._values.plain_columns import plain_column
from dataplane_client._values.row_kernels import RowCopy, copy_rows
from dataplane_client._values.rows import gather_rows

Array = npt.NDArray[Any]
Fields = TensorDictBase | Mapping[str, object]
"""Columns as callers give them, with one row for each sample."""
Lengths = torch.Tensor | Sequence[int] | Array
"""Tokens of each row, (N,)."""


def to_nested_by_length(padded: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    """The torch.jagged nested tensor whose row i is ``padded[i, :lengths[i], ...]``, copied; a length above S means S.

    Gradients flow through. Raises ValueError for a tensor that is not ``(N, S, ...)``, lengths that are not ``(N,)``,
    and a negative length.
    """
    if padded.is_nested or padded.dim() < 2:
        found = "a nested tensor" if padded.is_nested else f"shape {tuple(padded.shape)}"
        raise ValueError(f"padded must have shape (N, S, ...), got {found}")
    row_lengths = _host_lengths(lengths)
    if len(row_lengths) != padded.shape[0]:
        raise ValueError(f"lengths shape must be ({padded.shape[0]},), got {row_lengths.shape}")
    row_lengths = np.minimum(row_lengths, padded.shape[1])
    return _nest(padded, split_rows(row_lengths, padded.device))


def _host_lengths(lengths: Lengths) -> Int64Array:
    given = plain_column("lengths", lengths)
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"lengths must be integers, got {type(lengths).__name__}")
    if given.is_nested or given.dim() != 1:
        raise ValueError(f"lengths shape must be (N,), got {tuple(given.shape)}")
    if given.numel() and (given.dtype is torch.bool or given.is_floating_point() or given.is_complex()):
        raise TypeError(f"lengths must be integers, got {given.dtype}")
    on_host = given.detach().to("cpu", torch.int64).numpy()
    if (on_host < 0).any():
        row = int(np.argmax(on_host < 0))
        raise ValueError(f"lengths must not be negative, row {row} has {on_host[row]}")
    return on_host


def _nest(padded: torch.Tensor, split: RowSplit, later: list[RowCopy] | None = None) -> torch.Tensor:
    n_rows, width = padded.shape[:2]
    entries = padded.reshape(n_rows * width, *padded.shape[2:])
    starts = np.arange(n_rows, dtype=np.int64) * width
    return build_jagged(gather_rows(entries, starts, split.lengths, later), split)


def stack_or_nest(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of one shape stacked, ``(N, *row)``; otherwise a torch.jagged tensor, ragged in the dim where they differ.

    No rows give an empty float32 tensor. Torch raises RuntimeError for rows of different rank.
    """
    if not tensors:
        return torch.empty(0)
    if all(row.shape == tensors[0].shape for row in tensors):
        return torch.stack(list(tensors))
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged)


def maybe_pack_jagged(val: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    """The field without its padding if its shape is ``(N, max(lengths), ...)``, otherwise contiguous; detached.

    Only the shape decides: a feature tensor whose dim 1 happens to equal the longest row is packed as a per-token
    field. If the per-token fields are known by name, use pack_per_token_field. Returns a nested field unchanged.
    """
    row_lengths = _host_lengths(lengths)
    if _is_per_token("", val, row_lengths, None):
        return _nest(val.detach(), split_rows(row_lengths, val.device))
    return _detach_contiguous(val)


def pack_per_token_field(val: torch.Tensor | Sequence[object] | Array, lengths: Lengths) -> torch.Tensor:
    """A per-token field without its padding, however wide that is; detached. val: a tensor, an array, or a list of rows
    (see put_samples).

    Returns the field contiguous and rectangular if it cannot be per-token: fewer than 2 dims, another number of rows,
    or narrower than the longest row. Returns a nested field unchanged. Raises TypeError for a column of objects.
    """
    row_lengths, column = _host_lengths(lengths), plain_column("val", val)
    if not isinstance(column, torch.Tensor):
        raise TypeError(f"a per-token field holds numbers, but this {type(val).__name__} does not")
    val = column
    if _holds_longest(val, row_lengths):
        return _nest(val.detach(), split_rows(row_lengths, val.device))
    return _detach_contiguous(val)


def _holds_longest(val: torch.Tensor, row_lengths: Int64Array) -> bool:
    if val.is_nested or val.dim() < 2 or len(row_lengths) == 0 or val.shape[0] != len(row_lengths):
        return False
    return bool(val.shape[1] >= row_lengths.max())


def _detach_contiguous(val: torch.Tensor) -> torch.Tensor:
    if val.is_nested:
        return val.detach() if val.requires_grad else val
    return val.detach().contiguous()


def pack_jagged_fields(
    fields: Mapping[str, object],
    *,
    lengths: Lengths | None,
    token_aligned_fields: set[str] | None = None,
) -> TensorDict:
    """The fields in wire layout, batch size ``[N]``, ready for put_samples; tensors are detached. fields: tensors,
    object arrays, and lists and arrays as in put_samples; lists of rows of one length count as rectangular.

    With lengths, a tensor is packed as maybe_pack_jagged does. With token_aligned_fields, a tensor named there is
    packed as pack_per_token_field does, and others stay rectangular. Without lengths all tensors stay rectangular and N
    is the fields' common leading dim (0 without fields). Object arrays are forwarded unchanged. A TensorDict holds such
    an array as one value, so put the result before indexing it.

    Raises TypeError for any other type of field and ValueError for a field without N rows.
    """
    row_lengths = None if lengths is None else _host_lengths(lengths)
    columns, n_rows = _columns(fields, None if row_lengths is None else len(row_lengths))
    return TensorDict(_packed(columns, row_lengths, token_aligned_fields), batch_size=[n_rows])


def _columns(fields: Mapping[str, object], n_rows: int | None) -> tuple[dict[str, torch.Tensor | ObjectArray], int]:
    """The fields as columns of n_rows rows, and this number. None: as many as the first one has that has rows."""
    columns: dict[str, torch.Tensor | ObjectArray] = {}
    for name, value in fields.items():
        column = plain_column(name, value)
        if not isinstance(column, (torch.Tensor, np.ndarray)):
            raise TypeError(f"field {name!r}: expected a tensor, a list or an array, got {type(value).__name__}")
        columns[name] = column
    counts = {name: count_rows(column) for name, column in columns.items()}
    if n_rows is None:
        n_rows = next((rows for rows in counts.values() if rows is not None), 0)
    for name, rows in counts.items():
        if rows != n_rows:
            found = f"{'a 0-d value' if rows is None else counted(rows, 'row')}, but the batch has"
            raise ValueError(f"field {name!r}: batch dimension mismatch: {found} {counted(n_rows, 'row')}")
    return columns, n_rows


def _packed(
    columns: Mapping[str, torch.Tensor | ObjectArray], row_lengths: Int64Array | None, names: Collection[str] | None
) -> dict[str, torch.Tensor | ObjectArray]:
    splits: dict[torch.device, RowSplit] = {}
    copies: list[RowCopy] = []
    packed: dict[str, torch.Tensor | ObjectArray] = {}
    for name, val in columns.items():
        if not isinstance(val, torch.Tensor):
            packed[name] = val
        elif row_lengths is None or not _is_per_token(name, val, row_lengths, names):
            packed[name] = _detach_contiguous(val)
        else:
            split = splits.setdefault(val.device, split_rows(row_lengths, val.device))
            packed[name] = _nest(val.detach(), split, copies)
    copy_rows(copies)
    return packed


def _is_per_token(name: str, val: torch.Tensor, row_lengths: Int64Array, names: Collection[str] | None) -> bool:
    if not _holds_longest(val, row_lengths):
        return False
    return bool(val.shape[1] == row_lengths.max()) if names is None else name in names


def with_padded_rows(
    fields: Mapping[str, object], lengths: Lengths, token_aligned_fields: Collection[str] | None
) -> dict[str, object]:
    """As pack_jagged_fields, with the same errors, but with PaddedRows where that copies rows."""
    row_lengths = _host_lengths(lengths)
    columns, _ = _columns(fields, len(row_lengths))
    padded = {
        name: PaddedRows(val.detach(), row_lengths)
        for name, val in columns.items()
        if isinstance(val, torch.Tensor) and _is_per_token(name, val, row_lengths, token_aligned_fields)
        if val.device.type == "cpu" and val.is_contiguous()
    }
    others = {name: val for name, val in columns.items() if name not in padded}
    packed = _packed(others, row_lengths, token_aligned_fields)
    return {name: padded[name] if name in padded else packed[name] for name in columns}


def response_from_nested(full: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """The response part of per-token predictions, one jagged row of response_len per sample.

    full has rows of prompt_len + response_len, response_mask of response_len; the latter's values are not read. The
    result is shifted left by one: position j of a response has the value of full one position before token j, where a
    causal model predicts it. It shares response_mask's offsets, so the two can be multiplied. Gradients flow through.

    Raises ValueError for a response without at least one prompt token before it.
    """
    for name, tensor in (("full", full), ("response_mask", response_mask)):
        if not tensor.is_nested:
            raise TypeError(f"{name} must be a nested tensor")
    rows, responses = read_jagged(full, "full"), read_jagged(response_mask, "response_mask")
    if len(rows.lengths) != len(responses.lengths):
        raise ValueError(f"full has {len(rows.lengths)} rows, response_mask has {len(responses.lengths)}")
    no_prompt = (responses.lengths > 0) & (responses.lengths >= rows.lengths)
    if no_prompt.any():
        row = int(np.argmax(no_prompt))
        raise ValueError(
            f"row {row}: a response of {responses.lengths[row]} tokens in a sequence of {rows.lengths[row]} "
            "leaves no prompt token before it; at least one is needed"
        )
    starts = np.maximum(rows.starts + rows.lengths - responses.lengths - 1, 0)
    values = gather_rows(rows.values, starts, responses.lengths)
    return build_jagged(values, split_like(response_mask, responses.lengths, values.device))

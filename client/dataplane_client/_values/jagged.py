"""Reading and building nested tensors whose rows are ragged in dim 1, ``(N, j, *trailing)``.

The rows of such a tensor are runs of one values buffer. Torch has several ways to store them: one after the other,
with holes between (``narrow``), as a window on a larger buffer (a slice of a batch), or, in the older strided layout,
as unrelated tensors. ``read_jagged`` reduces all of them to values, starts and lengths. ``build_jagged`` always records
the shortest and longest row: without them torch pads to the total number of entries.

Two nested tensors can be combined element by element only if they hold the *same* offsets tensor, so callers that
build several fields of one batch pass one ``RowSplit`` to all of them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import torch

from dataplane_client._common.arrays import Int64Array
from dataplane_client._values.rows import bits, gather_rows


def _is_useful(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("is_fx_tracing will return true")


# torch.nested warns, once per process, of a call that it makes itself. Callers can do nothing about that.
logging.getLogger("torch.fx._symbolic_trace").addFilter(_is_useful)


class _JaggedLayout(Protocol):
    """What torch adds to a tensor of the jagged layout; its type stubs lack it."""

    def offsets(self) -> torch.Tensor: ...

    def lengths(self) -> torch.Tensor | None: ...


@dataclass(frozen=True, slots=True)
class JaggedRows:
    """Row i is ``values[starts[i] : starts[i] + lengths[i]]``. values keeps its autograd history."""

    values: torch.Tensor
    starts: Int64Array
    lengths: Int64Array

    def packed(self) -> torch.Tensor:
        """The entries of the rows, one after the other; a view of values if the rows adjoin there."""
        ends = self.starts + self.lengths
        if len(ends) and not np.array_equal(ends[:-1], self.starts[1:]):
            return gather_rows(self.values, self.starts, self.lengths)
        return self.values[self.starts[0] : ends[-1]] if len(ends) else self.values[:0]


@dataclass(frozen=True, slots=True, eq=False)
class PaddedRows:
    """A jagged field whose row i is ``padded[i, :lengths[i]]``; padded is on the CPU and (N, S, ...).

    A put takes the rows from there, so that packing costs one copy: into the message or into the server's memory.
    """

    padded: torch.Tensor
    lengths: Int64Array


@dataclass(frozen=True, slots=True)
class RowSplit:
    """The lengths of N rows, and the N + 1 offsets that fields of one batch share, on the device of the values."""

    lengths: Int64Array
    offsets: torch.Tensor


def row_bounds(lengths: Int64Array) -> Int64Array:
    """The N + 1 offsets of N rows that adjoin."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def split_rows(lengths: Int64Array, device: torch.device) -> RowSplit:
    return RowSplit(lengths, torch.from_numpy(row_bounds(lengths)).to(device, non_blocking=True))


def split_like(nested: torch.Tensor, lengths: Int64Array, device: torch.device) -> RowSplit:
    """The split of a nested tensor with these row lengths. If new values cannot share its offsets, an equal one: it has
    holes, is a window on larger values, or is on another device.
    """
    if nested.layout is torch.jagged and nested.device == device:
        jagged = cast("_JaggedLayout", nested)
        if jagged.lengths() is None and int(jagged.offsets()[0]) == 0:
            return RowSplit(lengths, jagged.offsets())
    return split_rows(lengths, device)


def build_jagged(values: torch.Tensor, split: RowSplit) -> torch.Tensor:
    """The nested tensor of rows that adjoin in values, which is not copied."""
    longest = int(split.lengths.max(initial=0))
    shortest = int(split.lengths.min(initial=longest))
    return torch.nested.nested_tensor_from_jagged(
        values, offsets=split.offsets, min_seqlen=shortest, max_seqlen=longest
    )


def is_ragged_later(tensor: torch.Tensor) -> bool:
    """Whether rows of a nested tensor differ in another dim than their first."""
    if tensor.layout is torch.jagged:
        return _ragged_dim(tensor) != 1
    rows = tensor.unbind()
    return any(row.shape[1:] != rows[0].shape[1:] for row in rows)


def bounds_of_adjoining(tensor: torch.Tensor) -> torch.Tensor | None:
    """The N + 1 offsets, on its device, of a nested tensor whose rows are ragged in dim 1 and have no holes between
    them; None for others.
    """
    if tensor.layout is not torch.jagged or is_ragged_later(tensor):
        return None
    jagged = cast("_JaggedLayout", tensor)
    return jagged.offsets() if jagged.lengths() is None else None


def even_rows(tensor: torch.Tensor, field: str) -> torch.Tensor:
    """A nested tensor as a dense one if all rows have one shape, otherwise unchanged."""
    if is_ragged_later(tensor):
        each = tensor.unbind()
        return torch.stack(each) if all(row.shape == each[0].shape for row in each) else tensor
    rows = read_jagged(tensor, field)
    length = int(rows.lengths.max(initial=0))
    if (rows.lengths != length).any():
        return tensor
    return rows.packed().reshape(len(rows.lengths), length, *rows.values.shape[1:])


def without_rows(tensor: torch.Tensor) -> torch.Tensor:
    """A nested tensor of no rows as a dense one, whose ragged dim has the size 0."""
    sizes: list[object] = list(tensor.shape)
    empty = bits(tensor.values()).new_empty([size if type(size) is int else 0 for size in sizes])
    return empty.view(tensor.dtype)


def _ragged_dim(tensor: torch.Tensor) -> int:
    sizes: list[object] = list(tensor.shape)
    return next(dim for dim, size in enumerate(sizes) if isinstance(size, torch.SymInt))


def read_jagged(tensor: torch.Tensor, field: str) -> JaggedRows:
    """The rows of a nested tensor of either layout. Costs one device-to-host copy of the offsets.

    Raises ValueError, naming the field, if a dim other than dim 1 is ragged or the offsets do not fit the values.
    """
    if tensor.layout is not torch.jagged:
        return _read_strided(tensor, field)
    ragged_dim = _ragged_dim(tensor)
    if ragged_dim != 1:
        raise ValueError(
            f"field {field!r}: ragged in dim {ragged_dim}; only dim 1 may be ragged, so transpose it first"
        )
    jagged = cast("_JaggedLayout", tensor)
    offsets, lengths = _to_array(jagged.offsets()), jagged.lengths()
    row_lengths = np.diff(offsets) if lengths is None else _to_array(lengths)
    rows = JaggedRows(tensor.values(), offsets[:-1], row_lengths)
    _check_bounds(rows, field)
    return rows


def _to_array(tensor: torch.Tensor) -> Int64Array:
    return tensor.detach().to("cpu", torch.int64).numpy()


def _check_bounds(rows: JaggedRows, field: str) -> None:
    total = rows.values.shape[0]
    wrong = (rows.lengths < 0) | (rows.starts < 0) | (rows.lengths > total - rows.starts)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"field {field!r}, row {row}: {rows.lengths[row]} entries from entry {rows.starts[row]} on, "
            f"but values has {total} entries"
        )


def _read_strided(tensor: torch.Tensor, field: str) -> JaggedRows:
    rows = tensor.unbind()
    for index, row in enumerate(rows):
        if row.dim() == 0 or row.shape[1:] != rows[0].shape[1:]:
            raise ValueError(
                f"field {field!r}, row {index}: shape {tuple(row.shape)}, but row 0 has {tuple(rows[0].shape)}; only "
                "dim 1 of the batch may be ragged. Flatten the rows and put their shapes as a column beside them"
            )
    lengths = np.array([row.shape[0] for row in rows], np.int64)
    values = torch.cat(rows) if rows else torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return JaggedRows(values, np.cumsum(lengths) - lengths, lengths)

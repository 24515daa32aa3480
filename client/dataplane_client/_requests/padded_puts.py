"""Padding of per-token fields in puts: which lengths a call carries, and columns cut to them.

Only the server knows which fields are per-token. It refuses a rectangle for such a field unless all rows are known to
be as long as it is wide. A put that carries the rows' lengths is then sent once more, without the padding. What the
server said of a partition's fields is kept for later writes, which are cut before they are sent. They say that they
are, so the server refuses them if another partition has the name by now; they are sent again then, as they were given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from tensordict import TensorDictBase

from dataplane_client._common.arguments import checked_lengths
from dataplane_client._common.arrays import Int64Array
from dataplane_client._values.columns_layout import WireColumn
from dataplane_client._values.plain_columns import plain_column
from dataplane_client.errors import DataPlaneError, InvalidArgumentError

LENGTHS_FIELD = "input_lengths"


def carried_lengths(
    fields: TensorDictBase | Mapping[str, object] | None, given: list[int] | None, sample_ids: Sequence[str], where: str
) -> list[int] | None:
    """The tokens of each row: as given, or the integers of the field input_lengths. Raises InvalidArgumentError where
    both say something else about a row.
    """
    beside = None if fields is None else _integers(fields.get(LENGTHS_FIELD), len(sample_ids))
    if beside is None or given is None:
        return given if beside is None else checked_lengths(beside, sample_ids, where)
    for sample_id, length, other in zip(sample_ids, given, beside, strict=True):
        if length not in (-1, other):
            raise InvalidArgumentError(
                f"{where}: sample {sample_id!r}: sequence_lengths says {length} tokens, the field {LENGTHS_FIELD!r} "
                f"{other}",
                reason="LENGTH_MISMATCH",
            )
    return given


def _integers(value: object, n_rows: int) -> list[int] | None:
    if isinstance(value, (list, tuple, np.ndarray)):
        value = plain_column(LENGTHS_FIELD, value)
    if not isinstance(value, torch.Tensor) or value.is_nested or value.shape != (n_rows,):
        return None
    if value.dtype is torch.bool or value.is_floating_point() or value.is_complex():
        return None
    lengths: list[int] = value.tolist()
    return lengths


def without_known_padding(
    columns: Sequence[WireColumn], per_token: Collection[str], lengths: Sequence[int]
) -> list[WireColumn] | None:
    """As without_padding, before the server has refused anything; None also if it is to say what is wrong."""
    if not per_token or min(lengths, default=-1) < 0:
        return None
    try:
        return without_padding(columns, per_token, lengths, "", full=False)
    except InvalidArgumentError:
        return None


def may_be_padded(error: DataPlaneError, columns: Sequence[WireColumn], lengths: Sequence[int] | None) -> bool:
    """Whether a write was refused for padding that the lengths may tell apart. If it was, and there are no lengths,
    raises the error with what to do.
    """
    if error.reason not in ("LENGTH_MISMATCH", "REQUEST_ID_USED"):
        return False
    if lengths is not None:
        return min(lengths, default=-1) >= 0 and any(_width(column) is not None for column in columns)
    column = next((column for column in columns if column.name == error.details.get("field")), None)
    width = None if column is None else _width(column)
    if column is None or not width:
        return False
    message = (
        f"{error.message}. Strip the padding with pack_per_token_field(value, lengths), or put the rows with "
        f"sequence_lengths= (rows without padding: [{width}] * len(sample_ids))"
    )
    raise InvalidArgumentError(message, reason=error.reason, details=error.details) from None


def without_padding(
    columns: Sequence[WireColumn], per_token: Collection[str], lengths: Sequence[int], where: str, *, full: bool = True
) -> list[WireColumn] | None:
    """The columns, with rectangles of per-token fields cut to the lengths; None if none can be cut. full: also those
    without padding, of which a commit does not say that they have none.

    Raises InvalidArgumentError for a rectangle that is narrower than a row's length.
    """
    row_lengths = np.asarray(lengths, np.int64)
    cut = [_cut(column, row_lengths, where, full) if column.name in per_token else column for column in columns]
    return None if all(new is old for new, old in zip(cut, columns, strict=True)) else cut


def _cut(column: WireColumn, lengths: Int64Array, where: str, full: bool) -> WireColumn:
    width = _width(column)
    if width is None:
        return column
    if lengths.max(initial=0) > width:
        row = int((lengths > width).argmax())
        message = f"the call says {lengths[row]} tokens, but the column is {width} wide"
        raise InvalidArgumentError(f"{where}, field {column.name!r}, row {row}: {message}", reason="LENGTH_MISMATCH")
    if (lengths == width).all() and not (full and column.kind == "dense"):
        return column
    if column.kind == "jagged":
        return replace(column, lengths=lengths, per_token=True)
    starts = np.arange(len(lengths), dtype=np.int64) * (width * column.entry_bytes)
    return replace(column, kind="jagged", row_shape=column.entry_shape, lengths=lengths, starts=starts, per_token=True)


def _width(column: WireColumn) -> int | None:
    """Entries of every row in a rectangle of two or more dimensions: a dense column, or a list of rows of one
    length.
    """
    if column.kind == "dense":
        return column.row_shape[0] if column.row_shape else None
    if column.starts is None or column.lengths is None or not len(column.lengths):
        return None
    width = int(column.lengths[0])
    return width if (column.lengths == width).all() else None

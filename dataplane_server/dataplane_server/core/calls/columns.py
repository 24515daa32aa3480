"""The layout of one field in one put or read, and the sizes of its rows.

A row of any kind has `entries` * `entry_bytes` bytes. A jagged row of shape (L, *trailing) has L entries of shape
`trailing`, a dense row of shape (S, *trailing) has S, a scalar row has one, and an object row has one entry for each
byte of its msgpack. So a dense field becomes jagged without rewriting values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array
from rl_dataplane.v1.element_types import ITEM_SIZES, KINDS, Kind

MAX_ENTRIES = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """What all rows of a field have in common.

    row_shape: the shape of a row (dense), or of a row without its first dimension (jagged); empty for objects. dtype:
    the element type; empty for objects.
    """

    kind: Kind
    dtype: str
    row_shape: tuple[int, ...]

    def __str__(self) -> str:
        if self.kind == "object":
            return "object"
        dimensions = ["*"] * (self.kind == "jagged") + [str(size) for size in self.row_shape]
        return f"{self.kind} {self.dtype} ({', '.join(dimensions)})"

    @property
    def element(self) -> str:
        """The element type; "object" for objects."""
        return self.dtype or "object"

    @property
    def trailing(self) -> tuple[int, ...]:
        """The shape of one entry."""
        return self.row_shape[1:] if self.kind == "dense" else self.row_shape

    @property
    def entry_bytes(self) -> int:
        if self.kind == "object":
            return 1
        return ITEM_SIZES[self.dtype] * math.prod(self.row_shape[1:] if self.kind == "dense" else self.row_shape)

    @property
    def dense_entries(self) -> int:
        """Entries of each row of a dense field."""
        return self.row_shape[0] if self.row_shape else 1

    def widened(self, other: Shape) -> Shape | None:
        """The shape of a field that has held `self` and now receives `other`; None if one field cannot hold both."""
        if self == other:
            return self
        same_elements = self.dtype == other.dtype and "object" not in (self.kind, other.kind)
        have_first_dimension = all(shape.kind == "jagged" or shape.row_shape for shape in (self, other))
        if same_elements and have_first_dimension and self.trailing == other.trailing:
            return Shape("jagged", self.dtype, self.trailing)
        return None


@lru_cache(maxsize=4096)
def shape_of(kind: Kind, dtype: str, row_shape: tuple[int, ...]) -> Shape:
    """The same object for the same shape, so that most puts of a field find the shape that it holds at a glance."""
    return Shape(kind, dtype, row_shape)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnSpec:
    """One field of a put as a caller describes it, unchecked. lengths: one for each row; None for a dense field.
    per_token: the caller takes the field to be per-token.
    """

    name: str
    shape: Shape
    lengths: Int64Array | None = None
    per_token: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One field of a put: its shape, the entries of each row, and the bytes of all rows. size_bytes is exact even if
    row_bytes overflow, so check it first. per_token: as in ColumnSpec.
    """

    name: str
    shape: Shape
    entries: Int64Array
    size_bytes: int
    per_token: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What rows have of the fields of an append: where it is, and its entries. Arrays with a row for each field."""

    offsets: Int64Array
    entries: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The fields of a put: one by one, and as arrays with a row for each field (entries; bytes of an entry). kept: the
    beginnings of the rows of an append, which are in the arena and are not sent.
    """

    each: tuple[Column, ...]
    entries: Int64Array
    entry_bytes: Int64Array
    size_bytes: int
    kept: Kept | None = None

    @property
    def row_bytes(self) -> Int64Array:
        return self.entries * self.entry_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes that are not sent."""
        return 0 if self.kept is None else int((self.kept.entries * self.entry_bytes).sum())

    @property
    def sent_bytes(self) -> int:
        return self.size_bytes if self.kept is None else self.size_bytes - self.kept_bytes

    def appended_to(self, kept: Kept) -> Columns:
        """The columns with what rows have before their entries. Refusal for a row that becomes too long."""
        entries = self.entries + kept.entries
        _check_entries(self.each, entries)
        sizes = _sizes(entries, self.entry_bytes[:, 0].tolist())
        pairs = zip(self.each, entries, sizes, strict=True)
        each = tuple(replace(column, entries=of_rows, size_bytes=size) for column, of_rows, size in pairs)
        return Columns(each, entries, self.entry_bytes, sum(sizes), kept)


def make_columns(specs: Sequence[ColumnSpec], n_rows: int, limits: Limits) -> Columns:
    """Check the columns of a put of n_rows rows. The refusal names the field, the row and the rule."""
    entries = np.empty((len(specs), n_rows), np.int64)
    entry_bytes = [_fill_in(of_rows, spec, limits) for of_rows, spec in zip(entries, specs, strict=True)]
    _check_entries(specs, entries)
    each = tuple(
        Column(spec.name, spec.shape, of_rows, size, spec.per_token)
        for spec, of_rows, size in zip(specs, entries, _sizes(entries, entry_bytes), strict=True)
    )
    return Columns(each, entries, np.array(entry_bytes, np.int64)[:, None], sum(column.size_bytes for column in each))


def _sizes(entries: Int64Array, entry_bytes: Sequence[int]) -> list[int]:
    """The bytes of each field, as Python's numbers: those of one row may exceed 64 bits."""
    return [total * unit for total, unit in zip(entries.sum(axis=1).tolist(), entry_bytes, strict=True)]


def _fill_in(entries: Int64Array, spec: ColumnSpec, limits: Limits) -> int:
    """Check a column, and write the entries of its rows into the array. Returns the bytes of an entry."""
    name, shape, lengths = spec.name, spec.shape, spec.lengths
    unit = _checked_entry_bytes(name, shape, limits)
    if shape.kind == "dense":
        if lengths is not None:
            raise Refusal(Reason.INVALID_REQUEST, f"field {name!r} is dense and must not carry row lengths", field=name)
        entries[:] = shape.dense_entries
    elif lengths is None or lengths.size != entries.size:
        got = 0 if lengths is None else lengths.size
        message = f"field {name!r} has {got} rows but the call names {entries.size} samples"
        raise Refusal(Reason.ROW_COUNT_MISMATCH, message, field=name, rows=got, samples=entries.size)
    else:
        entries[:] = lengths
    return unit


def _check_entries(specs: Sequence[ColumnSpec | Column], entries: Int64Array) -> None:
    out_of_range = entries.view(np.uint64) > MAX_ENTRIES  # a negative length is huge here
    if out_of_range.any():
        column, row = divmod(int(out_of_range.argmax()), entries.shape[1])
        name = specs[column].name
        message = f"field {name!r}, row {row}: length {entries[column, row]} is not in 0 to {MAX_ENTRIES}"
        raise Refusal(Reason.INVALID_REQUEST, message, field=name, row=row)


def _checked_entry_bytes(name: str, shape: Shape, limits: Limits) -> int:
    if shape.kind not in KINDS:
        raise Refusal(Reason.INVALID_REQUEST, f"field {name!r} has no kind", field=name)
    if shape.kind == "object":
        if shape.dtype or shape.row_shape:
            message = f"field {name!r} is of kind object and must have neither element type nor row shape"
            raise Refusal(Reason.INVALID_REQUEST, message, field=name)
        return 1
    if shape.dtype not in ITEM_SIZES:
        raise Refusal(Reason.INVALID_REQUEST, f"field {name!r} has no element type", field=name)
    if len(shape.row_shape) > limits.max_dimensions:
        message = f"field {name!r} has {len(shape.row_shape)} dimensions per row; the limit is {limits.max_dimensions}"
        raise Refusal(Reason.INVALID_REQUEST, message, field=name)
    unit = shape.entry_bytes
    if max(shape.row_shape, default=0) > MAX_ENTRIES or unit > 1 << 40:
        raise Refusal(Reason.INVALID_REQUEST, f"field {name!r}: rows of {shape} are too large", field=name)
    return unit

"""The shape and the bytes of one field of one put or read. Free of torch, so that transports can import it.

A column is one flat buffer: the bytes of row 0, then of row 1, and so on, little-endian, C order, with no gaps. Every
row is a number of entries along its first dimension, each of `entry_bytes`. Dense rows have the entries that their
shape says; jagged and object columns carry one length for each row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from dataplane_client._common.arrays import Int64Array
from rl_dataplane.v1.element_types import ITEM_SIZES, Kind

Layout = Literal["padded", "jagged", "auto"]
"""How ragged fields reach the trainer: as rectangles filled up with a pad value, as torch.jagged nested tensors, or
("auto") as rectangles where all rows read have one length and as nested tensors where they have not.
"""

TensorLayout = Literal["jagged", "auto"]
"""The layouts of reads that do not pad."""


@dataclass(frozen=True, eq=False)
class ColumnLayout:
    """How the rows of one field are shaped."""

    name: str
    kind: Kind
    dtype: str
    """Canonical name (see rl_dataplane.v1.element_types); empty for object columns."""
    row_shape: tuple[int, ...]
    """dense: the shape of one row; jagged: the shape of one entry, after the ragged dim; object: ()."""
    lengths: Int64Array | None
    """jagged: entries per row; object: msgpack bytes per row; dense: None."""

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """The shape of one entry along a row's first dimension."""
        return self.row_shape[1:] if self.kind == "dense" else self.row_shape

    @property
    def item_size(self) -> int:
        """Bytes of one element; 1 for objects."""
        return 1 if self.kind == "object" else ITEM_SIZES[self.dtype]

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry along a row's first dimension; 1 for objects."""
        return math.prod(self.entry_shape) * self.item_size

    @cached_property
    def shape_bytes(self) -> int:
        """Bytes of what row_shape is the shape of; 1 for objects."""
        return math.prod(self.row_shape) * self.item_size

    def row_bytes(self, n_rows: int) -> Int64Array:
        """Bytes of each row."""
        lengths = np.ones(n_rows, np.int64) if self.lengths is None else self.lengths
        return lengths * self.shape_bytes

    def size_of(self, n_rows: int) -> int:
        """Bytes of all rows."""
        return (n_rows if self.lengths is None else int(self.lengths.sum())) * self.shape_bytes


def even_layout(layout: ColumnLayout) -> ColumnLayout:
    """The layout as a dense one if it is jagged and all rows have one length."""
    if layout.kind != "jagged" or layout.lengths is None or not len(layout.lengths):
        return layout
    length = int(layout.lengths[0])
    if (layout.lengths != length).any():
        return layout
    return ColumnLayout(layout.name, "dense", layout.dtype, (length, *layout.row_shape), None)


@dataclass(frozen=True, eq=False)
class WireColumn(ColumnLayout):
    """A layout and its values. A column keeps the memory under its values alive."""

    values: memoryview
    """The bytes of all rows, contiguous and in order, without gaps unless `starts` is given."""
    starts: Int64Array | None = None
    """Where each row of a jagged column begins in values, in bytes, one behind the other, if rows may have gaps between
    them, as those of a padded tensor do.
    """
    of_empty_lists: bool = False
    """Whether an object column was given as nothing but empty lists, and is to become what its field holds."""
    per_token: bool = False
    """Padding was cut off, because the field is per-token; the server refuses the column if it is not."""

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all rows, without the gaps."""
        if self.starts is None or self.lengths is None:
            return self.values.nbytes
        return int(self.lengths.sum()) * self.shape_bytes

    def as_jagged(self, n_rows: int) -> WireColumn:
        """The same entries as a jagged column. A row of one number is one entry; an object column stays as it is."""
        if self.kind != "dense":
            return self
        entries = self.row_shape[0] if self.row_shape else 1
        lengths = np.full(n_rows, entries, np.int64)
        return WireColumn(self.name, "jagged", self.dtype, self.row_shape[1:], lengths, self.values)

    def pieces(self) -> list[memoryview]:
        """The bytes of all rows, in as few views as the gaps allow."""
        if self.starts is None or self.size_bytes == self.values.nbytes:
            return [self.values]
        sizes = self.row_bytes(len(self.starts)).tolist()
        return [self.values[start : start + size] for start, size in zip(self.starts.tolist(), sizes, strict=True)]


def total_bytes(columns: Sequence[WireColumn]) -> int:
    """Bytes of the values of all columns."""
    return sum(column.size_bytes for column in columns)


def join_values(columns: Sequence[WireColumn]) -> bytes:
    """The values of all columns, one after the other."""
    return b"".join(piece for column in columns for piece in column.pieces())


def split_into_chunks(columns: Sequence[WireColumn], chunk_bytes: int) -> Iterator[list[memoryview]]:
    """The values of all columns in chunks of chunk_bytes, the last one shorter; a chunk is a list of views."""
    pieces: list[memoryview] = []
    room = chunk_bytes
    for column in columns:
        for rest in column.pieces():
            while rest.nbytes:
                piece, rest = rest[:room], rest[room:]
                pieces.append(piece)
                room -= piece.nbytes
                if not room:
                    yield pieces
                    pieces, room = [], chunk_bytes
    if pieces:
        yield pieces

"""The shape of one field of one put or read, free of torch so that transports and the CLI can import it.

A column is one flat buffer: the bytes of row 0, then of row 1, and so on, little-endian, C order, with no gaps. What
is needed to cut it into rows stands beside it: nothing but the row shape for dense columns, one length per row for
jagged and object columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["dense", "jagged", "object"]

Layout = Literal["padded", "jagged"]
"""How ragged fields reach the trainer: as rectangles filled up with a pad value, or as torch.jagged nested tensors."""


ITEM_SIZES: Final = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float4_e2m1fn_x2": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element, by the element type's canonical name: torch's own without its ``torch.`` prefix."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnLayout:
    """How the rows of one field are shaped."""

    name: str
    kind: Kind
    dtype: str
    """Canonical name (see dataplane_client.dtypes); empty for object columns."""
    row_shape: tuple[int, ...]
    """dense: the shape of one row; jagged: the shape of one entry, after the ragged dim; object: ()."""
    lengths: npt.NDArray[np.int64] | None
    """jagged: entries per row; object: msgpack bytes per row; dense: None."""

    @property
    def unit_bytes(self) -> int:
        """Bytes of a dense row, of a jagged row's entry, 1 for objects."""
        return 1 if self.kind == "object" else math.prod(self.row_shape) * ITEM_SIZES[self.dtype]

    def size_of(self, n_rows: int) -> int:
        """Bytes of all rows."""
        return (n_rows if self.lengths is None else int(self.lengths.sum())) * self.unit_bytes

    def row_bytes(self, n_rows: int) -> npt.NDArray[np.int64]:
        """Bytes of each row."""
        if self.lengths is None:
            return np.full(n_rows, self.unit_bytes, np.int64)
        return self.lengths * self.unit_bytes


@dataclass(frozen=True, slots=True, eq=False)
class WireColumn(ColumnLayout):
    """One field of one put or read. Holding a column keeps the memory under its values alive."""

    values: memoryview
    """The bytes of all rows, contiguous, one after the other, with no gaps, unless `starts` says otherwise."""
    starts: npt.NDArray[np.int64] | None = None
    """Where each row of a jagged column begins in values, in bytes, if they do not adjoin: rows of a padded tensor."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        if self.starts is None or self.lengths is None:
            return self.values.nbytes
        return int(self.lengths.sum()) * self.unit_bytes

    def pieces(self) -> Iterator[memoryview]:
        """The bytes of all rows, in as few views as there are gaps."""
        if self.starts is None or self.lengths is None:
            yield self.values
            return
        for start, size in zip(self.starts.tolist(), self.row_bytes(len(self.starts)).tolist(), strict=True):
            yield self.values[start : start + size]

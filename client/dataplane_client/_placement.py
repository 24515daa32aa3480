"""Where the values of a read go: buffers for columns, and the copies that fill them.

A read's values are one sequence of bytes: row after row, column after column. Each column has a buffer in which its
rows adjoin, or each is as wide as the widest and filled up behind its values. Whoever has some bytes of the sequence, a
chunk of a stream or the arena itself, turns them into copies here: every byte is copied once, to its last place.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataplane_client.columns_layout import ITEM_SIZES, ColumnLayout
from dataplane_client.errors import InternalError
from dataplane_client.row_kernels import ByteArray, RowCopy, copy_rows
from dataplane_client.warm_buffers import take

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Padding:
    """Rows are to be width entries of dim 1 wide, the entries behind a row's own filled with an element's bytes."""

    width: int
    element: bytes


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a read is to go.

    place: how a column is wanted, padded or (None) with its rows one after the other. allocate: memory of so many bytes
    for a column; its contents do not matter. views: columns whose rows adjoin in memory that the server shares are not
    copied at all, and neither placed nor allocated.
    """

    place: Callable[[ColumnLayout], Padding | None]
    allocate: Callable[[int], ByteArray] = take
    views: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PlacedColumn:
    """A column that was read. width: entries of each row in dim 1 if it was padded, None if its rows adjoin."""

    layout: ColumnLayout
    values: ByteArray
    width: int | None


def adjoining(layout: ColumnLayout) -> None:
    """A place for every column: its rows one after the other."""


class _Target:
    """One column of a read: its buffer, and where its rows go there."""

    def __init__(self, layout: ColumnLayout, n_rows: int, destination: Destination) -> None:
        padding = destination.place(layout)
        self.size_bytes = layout.size_of(n_rows)
        self.element = b"\0" if padding is None else padding.element
        self._n_rows = n_rows
        self._width_bytes = None if padding is None else padding.width * _entry_bytes(layout)
        values = destination.allocate(self.size_bytes if self._width_bytes is None else n_rows * self._width_bytes)
        self.placed = PlacedColumn(layout, values, None if padding is None else padding.width)

    @property
    def row_bytes(self) -> Int64Array:
        """Bytes of each row, padding aside."""
        return self.placed.layout.row_bytes(self._n_rows)

    @property
    def starts(self) -> Int64Array:
        """Where each row begins in the buffer."""
        if self._width_bytes is not None:
            return np.arange(self._n_rows, dtype=np.int64) * self._width_bytes
        return np.cumsum(self.row_bytes) - self.row_bytes

    @property
    def fills(self) -> Int64Array | None:
        """Bytes of padding behind each row."""
        return None if self._width_bytes is None else self._width_bytes - self.row_bytes

    def copy_of(self, source: ByteArray, rows: Int64Array) -> RowCopy:
        """The copy of all rows, which begin at these bytes of source."""
        return RowCopy(self.placed.values, self.starts, source, rows, self.row_bytes, self.fills, self.element)

    def copy_of_piece(self, source: ByteArray, at: int) -> RowCopy:
        """The copy of all rows, which lie in one piece of source."""
        if self._width_bytes is not None:
            return self.copy_of(source, at + np.cumsum(self.row_bytes) - self.row_bytes)
        whole = np.array([self.size_bytes], np.int64)
        return RowCopy(self.placed.values, np.zeros(1, np.int64), source, np.array([at], np.int64), whole)


class ReadBuffers:
    """The buffers of one read, n_rows rows of each layout, and the copies into them."""

    def __init__(self, layouts: Sequence[ColumnLayout], n_rows: int, destination: Destination) -> None:
        self._targets = [_Target(layout, n_rows, destination) for layout in layouts]
        self._n_rows = n_rows
        self.columns = [target.placed for target in self._targets]
        self.size_bytes = sum(target.size_bytes for target in self._targets)

    def copy_runs(self, source: ByteArray, offsets: Int64Array, run_sizes: Int64Array) -> None:
        """Copy everything: the read's bytes are these runs of source, in their order. Raises ValueError when the runs
        are not as many bytes, or cut a row in two.
        """
        pieces = column_pieces(offsets, run_sizes, [target.size_bytes for target in self._targets])
        if pieces is not None:
            copy_rows([target.copy_of_piece(source, at) for target, at in zip(self._targets, pieces, strict=True)])
            return
        row_bytes = np.concatenate([target.row_bytes for target in self._targets])
        places = row_places(offsets, run_sizes, row_bytes).reshape(len(self._targets), self._n_rows)
        copy_rows([target.copy_of(source, rows) for target, rows in zip(self._targets, places, strict=True)])

    def stream(self) -> StreamBuffers:
        """To fill the buffers as chunks come."""
        return StreamBuffers(self._targets, self._n_rows)


class StreamBuffers:
    """The copies into the buffers of a read whose bytes come in chunks."""

    def __init__(self, targets: Sequence[_Target], n_rows: int) -> None:
        self._targets = targets
        self._n_rows = n_rows
        self._row_starts = [target.starts for target in targets]
        self._sizes = np.concatenate([target.row_bytes for target in targets])
        self._ends: Int64Array = np.cumsum(self._sizes)
        self._starts: Int64Array = self._ends - self._sizes
        self._size_bytes = int(self._ends[-1])
        self._received = 0

    def add(self, position: int, chunk: memoryview) -> None:
        """Copy the next bytes of the read, which come at `position`; `finish` once all have come.

        Raises ValueError when they do not continue what came, or are too many.
        """
        if position != self._received or position + len(chunk) > self._size_bytes:
            raise ValueError(
                f"a chunk of {len(chunk)} bytes at byte {position} came where byte {self._received} of "
                f"{self._size_bytes} was next"
            )
        self._received += len(chunk)
        source: ByteArray = np.frombuffer(chunk, np.uint8)
        first = int(np.searchsorted(self._ends, position, side="right"))
        last = int(np.searchsorted(self._starts, position + len(chunk), side="left"))
        copies = []
        while first < last:
            column = first // self._n_rows
            upto = min(last, (column + 1) * self._n_rows)
            copies.append(self._chunk_copy(column, slice(first, upto), source, position))
            first = upto
        copy_rows(copies)

    def _chunk_copy(self, column: int, rows: slice, source: ByteArray, position: int) -> RowCopy:
        starts, ends = self._starts[rows], self._ends[rows]
        begins = np.maximum(starts, position)
        sizes = np.minimum(ends, position + len(source)) - begins
        base = column * self._n_rows
        targets = self._row_starts[column][rows.start - base : rows.stop - base] + begins - starts
        return RowCopy(self._targets[column].placed.values, targets, source, begins - position, sizes)

    def finish(self) -> None:
        """Fill up padded rows behind their values. Raises ValueError when bytes are missing."""
        if self._received != self._size_bytes:
            raise ValueError(f"the stream ended after {self._received} of {self._size_bytes} bytes")
        nothing = np.zeros(self._n_rows, np.int64)
        copies = []
        for target, starts in zip(self._targets, self._row_starts, strict=True):
            values, ends = target.placed.values, starts + target.row_bytes
            if target.fills is not None:
                copies.append(RowCopy(values, ends, values[:0], nothing, nothing, target.fills, target.element))
        copy_rows(copies)


def _entry_bytes(layout: ColumnLayout) -> int:
    """Bytes of one entry of dim 1 of the batch."""
    trailing = layout.row_shape[1:] if layout.kind == "dense" else layout.row_shape
    return math.prod(trailing) * ITEM_SIZES[layout.dtype]


def column_pieces(offsets: Int64Array, run_sizes: Int64Array, column_sizes: Sequence[int]) -> list[int] | None:
    """Where each column begins, when each that has bytes is one run; None when it takes a look at the rows to tell."""
    if run_sizes.tolist() != [size for size in column_sizes if size]:
        return None
    begins = iter(offsets.tolist())
    return [next(begins) if size else 0 for size in column_sizes]


def row_places(offsets: Int64Array, run_sizes: Int64Array, row_sizes: Int64Array) -> Int64Array:
    """Where each row begins, when the bytes of all rows are these runs in their order. Raises ValueError when the runs
    are not as many bytes, or end within a row.
    """
    ends = np.cumsum(row_sizes)
    begins = np.cumsum(run_sizes) - run_sizes
    if int(run_sizes.sum()) != int(ends[-1]):
        raise ValueError(f"runs of {int(run_sizes.sum())} bytes for {int(ends[-1])} bytes of values")
    if not ends[-1]:
        return np.zeros(len(row_sizes), np.int64)
    run = np.maximum(np.searchsorted(begins, ends - row_sizes, side="right") - 1, 0)
    within = ends - row_sizes - begins[run]
    if (within + row_sizes > run_sizes[run]).any():
        raise ValueError("a run ends within a row")
    return np.asarray(offsets[run] + within)


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """A block in which a ValueError says that the values that a server has sent are none of their field's."""
    try:
        yield
    except ValueError as error:
        raise InternalError(f"the server sent a column that cannot be decoded: {error}") from None


@contextlib.contextmanager
def fitting(target: str) -> Iterator[None]:
    """A block in which a ValueError says that the server at target has sent values that do not fit their layout."""
    try:
        yield
    except ValueError as error:
        raise InternalError(f"ReadColumns at {target}: {error}") from None

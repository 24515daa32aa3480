"""Where the values of a read go: buffers for columns, and the copies that fill them.

A read's values are one sequence of bytes: row after row, column after column. Each column has a buffer, in which its
rows either adjoin or are padded to one width. Bytes of the sequence come in chunks of a stream or lie in the arena; in
both cases every byte is copied once, to its final place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dataplane_client._common.arrays import ByteArray, Int64Array
from dataplane_client._values.columns_layout import ColumnLayout
from dataplane_client._values.digests import DigestCheck
from dataplane_client._values.row_kernels import RowCopy, copy_and_hash_rows, copy_rows, hash_rows
from dataplane_client._values.warm_buffers import take
from dataplane_client.errors import InternalError


@dataclass(frozen=True, slots=True)
class Padding:
    """Pads rows to width entries in dim 1. element: the bytes of the pad value, repeated behind each row's entries."""

    width: int
    element: bytes


def _take_each(_: Sequence[ColumnLayout], sizes: Sequence[int]) -> list[ByteArray]:
    return [take(size) for size in sizes]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the values of a read go.

    place: the padding of a column; None for rows that adjoin. allocate: returns memory for each column, of the given
    size in bytes; its contents do not matter. views: columns whose rows adjoin in memory that the server shares are not
    copied, and neither place nor allocate is called for them.
    """

    place: Callable[[ColumnLayout], Padding | None]
    allocate: Callable[[Sequence[ColumnLayout], Sequence[int]], Sequence[ByteArray]] = _take_each
    views: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PlacedColumn:
    """A column that was read. width: entries of each row in dim 1 if the column is padded, None if its rows adjoin."""

    layout: ColumnLayout
    values: ByteArray
    width: int | None


def adjoining(layout: ColumnLayout) -> None:
    """Destination.place for rows that adjoin: no padding."""


class _Target:
    """One column of a read: its buffer, and where its rows go there."""

    def __init__(self, layout: ColumnLayout, n_rows: int, padding: Padding | None, values: ByteArray) -> None:
        self.size_bytes = layout.size_of(n_rows)
        self.element = b"\0" if padding is None else padding.element
        self._n_rows = n_rows
        self._width_bytes = None if padding is None else padding.width * layout.entry_bytes
        self.placed = PlacedColumn(layout, values, None if padding is None else padding.width)

    @cached_property
    def row_bytes(self) -> Int64Array:
        """Bytes of each row without padding."""
        return self.placed.layout.row_bytes(self._n_rows)

    @cached_property
    def starts(self) -> Int64Array:
        """Where each row begins in the buffer."""
        if self._width_bytes is not None:
            return np.arange(self._n_rows, dtype=np.int64) * self._width_bytes
        return np.cumsum(self.row_bytes) - self.row_bytes

    @cached_property
    def fills(self) -> Int64Array | None:
        """Bytes of padding behind each row."""
        return None if self._width_bytes is None else self._width_bytes - self.row_bytes

    def copy_of(self, source: ByteArray, rows: Int64Array) -> RowCopy:
        """The copy of all rows. rows: where each begins in source, in bytes."""
        return RowCopy(self.placed.values, self.starts, source, rows, self.row_bytes, self.fills, self.element)

    def copy_of_piece(self, source: ByteArray, at: int) -> RowCopy:
        """The copy of all rows, which adjoin in source from byte `at` on."""
        if self._width_bytes is not None:
            return self.copy_of(source, at + np.cumsum(self.row_bytes) - self.row_bytes)
        whole = np.array([self.size_bytes], np.int64)
        return RowCopy(self.placed.values, np.zeros(1, np.int64), source, np.array([at], np.int64), whole)


def _buffer_bytes(layout: ColumnLayout, padding: Padding | None, n_rows: int) -> int:
    return layout.size_of(n_rows) if padding is None else n_rows * padding.width * layout.entry_bytes


class ReadBuffers:
    """The buffers of one read, n_rows rows of each layout, and the copies into them. check: of their digests, which
    raises CorruptedError; None if they have none.
    """

    def __init__(
        self, layouts: Sequence[ColumnLayout], n_rows: int, destination: Destination, check: DigestCheck | None = None
    ) -> None:
        self._check = check
        paddings = [destination.place(layout) for layout in layouts]
        sizes = [_buffer_bytes(*column, n_rows) for column in zip(layouts, paddings, strict=True)]
        columns = zip(layouts, paddings, destination.allocate(layouts, sizes), strict=True)
        self._targets = [_Target(layout, n_rows, padding, values) for layout, padding, values in columns]
        self._n_rows = n_rows
        self.columns = [target.placed for target in self._targets]
        self.size_bytes = sum(target.size_bytes for target in self._targets)

    def copy_runs(self, source: ByteArray, offsets: Int64Array, run_sizes: Int64Array) -> None:
        """Copy all values: the runs of source, in order, are the read's sequence of bytes. Raises ValueError when the
        runs have another number of bytes, or a run ends within a row.
        """
        pieces = column_pieces(offsets, run_sizes, [target.size_bytes for target in self._targets])
        if pieces is not None and self._check is None:
            copy_rows([target.copy_of_piece(source, at) for target, at in zip(self._targets, pieces, strict=True)])
            return
        row_bytes = np.concatenate([target.row_bytes for target in self._targets])
        places = row_places(offsets, run_sizes, row_bytes).reshape(len(self._targets), self._n_rows)
        copies = [target.copy_of(source, rows) for target, rows in zip(self._targets, places, strict=True)]
        if self._check is None:
            copy_rows(copies)
        else:
            self._check.check(copy_and_hash_rows(copies))

    def copy_all(self, values: bytes) -> None:
        """Copy all values from one sequence of bytes. Raises ValueError as `copy_runs`."""
        self.copy_runs(np.frombuffer(values, np.uint8), np.zeros(1, np.int64), np.array([len(values)], np.int64))

    def stream(self) -> StreamBuffers:
        """A writer that fills the buffers chunk by chunk."""
        return StreamBuffers(self._targets, self._n_rows, self._check)


class StreamBuffers:
    """Fills the buffers of a read chunk by chunk."""

    def __init__(self, targets: Sequence[_Target], n_rows: int, check: DigestCheck | None) -> None:
        self._targets = targets
        self._check = check
        self._n_rows = n_rows
        self._row_starts = [target.starts for target in targets]
        self._sizes = np.concatenate([target.row_bytes for target in targets])
        self._ends: Int64Array = np.cumsum(self._sizes)
        self._starts: Int64Array = self._ends - self._sizes
        self._size_bytes = int(self._ends[-1])
        self._received = 0

    def add(self, position: int, chunk: memoryview) -> None:
        """Copy the next chunk, which begins at byte `position` of the read. Call `finish` after the last one.

        Raises ValueError when the chunk does not continue the last one, or exceeds the read.
        """
        if position != self._received or position + len(chunk) > self._size_bytes:
            raise ValueError(
                f"a chunk has {len(chunk)} bytes at byte {position}; the next byte is {self._received} of "
                f"{self._size_bytes}"
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
        """Check the values, and write the padding behind the rows. Raises ValueError when bytes are missing."""
        if self._received != self._size_bytes:
            raise ValueError(f"the stream ended after {self._received} of {self._size_bytes} bytes")
        if self._check is not None:
            pairs = zip(self._targets, self._row_starts, strict=True)
            self._check.check(hash_rows([(at.placed.values, starts, at.row_bytes) for at, starts in pairs]))
        nothing = np.zeros(self._n_rows, np.int64)
        copies = []
        for target, starts in zip(self._targets, self._row_starts, strict=True):
            values, ends = target.placed.values, starts + target.row_bytes
            if target.fills is not None:
                copies.append(RowCopy(values, ends, values[:0], nothing, nothing, target.fills, target.element))
        copy_rows(copies)


def column_pieces(offsets: Int64Array, run_sizes: Int64Array, column_sizes: Sequence[int]) -> list[int] | None:
    """Where each column begins, if every column with bytes is exactly one run; otherwise None."""
    if run_sizes.tolist() != [size for size in column_sizes if size]:
        return None
    begins = iter(offsets.tolist())
    return [next(begins) if size else 0 for size in column_sizes]


def row_places(offsets: Int64Array, run_sizes: Int64Array, row_sizes: Int64Array) -> Int64Array:
    """Where each row begins, given that the runs, in order, are the bytes of all rows. Raises ValueError when the runs
    have another number of bytes, or a run ends within a row.
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
def blame_server(what: str) -> Iterator[None]:
    """A context manager that turns a ValueError, raised for values that the server sent, into an InternalError. what:
    the beginning of its message.
    """
    try:
        yield
    except ValueError as error:
        raise InternalError(f"{what}: {error}") from None

"""Values of a put or commit on their way: into a message, into chunks, or into room of the arena that was lent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dataplane_client._placement import column_pieces
from dataplane_client.columns_layout import WireColumn
from dataplane_client.row_kernels import ByteArray, RowCopy, copy_rows

Int64Array = npt.NDArray[np.int64]


def size_of(columns: Sequence[WireColumn]) -> int:
    """Bytes of the values of all columns."""
    return sum(column.size_bytes for column in columns)


def joined(columns: Sequence[WireColumn]) -> bytes:
    """The values of all columns, one after the other."""
    return b"".join(piece for column in columns for piece in column.pieces())


def chunks(columns: Sequence[WireColumn], chunk_bytes: int) -> Iterator[list[memoryview]]:
    """The same bytes in chunks of chunk_bytes, the last one shorter; each as the views that make it up."""
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


def fill_runs(arena: ByteArray, offsets: Int64Array, sizes: Int64Array, columns: Sequence[WireColumn]) -> None:
    """Copy the values of all columns into runs of the arena, in their order. Raises ValueError when the runs are not as
    many bytes, or lie outside the arena.
    """
    pieces = column_pieces(offsets, sizes, [column.size_bytes for column in columns])
    if pieces is not None:
        copy_rows([_copy_to_piece(arena, at, column) for at, column in zip(pieces, columns, strict=True)])
    else:
        copy_rows(_copies_to_runs(arena, offsets, sizes, columns))


def _copy_to_piece(arena: ByteArray, at: int, column: WireColumn) -> RowCopy:
    begins, lengths = _rows_of(column)
    return RowCopy(arena, at + np.cumsum(lengths) - lengths, _source_of(column), begins, lengths)


def _copies_to_runs(
    arena: ByteArray, offsets: Int64Array, sizes: Int64Array, columns: Sequence[WireColumn]
) -> list[RowCopy]:
    sources = [_rows_of(column) for column in columns]
    begins, lengths = (np.concatenate(rows) for rows in zip(*sources, strict=True))
    if int(sizes.sum()) != int(lengths.sum()):
        raise ValueError(f"{int(sizes.sum())} bytes of room for {int(lengths.sum())} bytes of values")
    ends, run_ends = np.cumsum(lengths), np.cumsum(sizes)
    cuts = np.sort(np.concatenate((ends, run_ends)))  # between two cuts the bytes adjoin on both sides
    at = np.concatenate(([0], cuts[:-1]))
    at, cuts = at[at < cuts], cuts[at < cuts]
    row, run = np.searchsorted(ends, at, side="right"), np.searchsorted(run_ends, at, side="right")
    from_source, to_arena = begins[row] + at - (ends - lengths)[row], offsets[run] + at - (run_ends - sizes)[run]
    last_rows = np.cumsum([len(rows) for rows, _ in sources])
    parts = np.concatenate(([0], np.searchsorted(row, last_rows, side="left")))
    return [
        RowCopy(arena, to_arena[a:b], _source_of(column), from_source[a:b], (cuts - at)[a:b])
        for column, a, b in zip(columns, parts[:-1].tolist(), parts[1:].tolist(), strict=True)
        if a < b
    ]


def _source_of(column: WireColumn) -> ByteArray:
    source: ByteArray = np.frombuffer(column.values, np.uint8)
    return source


def _rows_of(column: WireColumn) -> tuple[Int64Array, Int64Array]:
    """Where the rows of a column begin in its values, and their sizes; one row when they adjoin."""
    if column.starts is None:
        return np.zeros(1, np.int64), np.array([column.values.nbytes], np.int64)
    return column.starts, column.row_bytes(len(column.starts))

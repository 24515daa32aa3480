"""Writing the values of a put or commit into the space of the arena that the server has reserved for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane_client._common.arrays import ByteArray, Int64Array, int64_bytes
from dataplane_client._memory.placement import column_pieces, row_places
from dataplane_client._values.columns_layout import WireColumn
from dataplane_client._values.digests import rows_of
from dataplane_client._values.row_kernels import RowCopy, copy_and_hash_rows, copy_rows


def fill_and_hash_runs(
    arena: ByteArray, offsets: Int64Array, sizes: Int64Array, columns: Sequence[WireColumn], n_rows: int
) -> bytes:
    """As fill_runs. Returns the digests of the values, of columns of n_rows rows."""
    rows = [rows_of(column, n_rows) for column in columns]
    places = row_places(offsets, sizes, np.concatenate([of_rows for _, _, of_rows in rows])).reshape(len(rows), n_rows)
    copies = [
        RowCopy(arena, targets, source, starts, of_rows)
        for targets, (source, starts, of_rows) in zip(places, rows, strict=True)
    ]
    return int64_bytes(copy_and_hash_rows(copies))


def fill_runs(arena: ByteArray, offsets: Int64Array, sizes: Int64Array, columns: Sequence[WireColumn]) -> None:
    """Copy the values of all columns, in order, into runs of the arena.

    Raises ValueError, before it writes anything, when the runs do not have exactly the bytes of the values, or lie
    outside the arena.
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
        raise ValueError(f"a reservation of {int(sizes.sum())} bytes for {int(lengths.sum())} bytes of values")
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
    """Where the rows of a column begin in its values, and their sizes; adjoining rows count as one."""
    if column.starts is None:
        return np.zeros(1, np.int64), np.array([column.values.nbytes], np.int64)
    return column.starts, column.row_bytes(len(column.starts))

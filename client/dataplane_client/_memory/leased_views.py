"""Columns of a read as views of the arena; nothing is copied, whatever their size.

The views lie in a private mapping of the read: writing to them changes neither the arena nor another read. The lease is
released when the last view is gone, and keeps the attachment alive until then.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from dataplane_client._common.arrays import Int64Array
from dataplane_client._memory.placement import PlacedColumn, column_pieces, row_places
from dataplane_client._memory.shared_arena import SharedArena
from dataplane_client._values.columns_layout import ColumnLayout


def leased_columns(
    arena: SharedArena,
    handle: int,
    layouts: Sequence[ColumnLayout],
    n_rows: int,
    offsets: Int64Array,
    sizes: Int64Array,
) -> list[PlacedColumn] | None:
    """The columns as views, if the rows of each adjoin in order and are aligned as torch needs, and there are bytes,
    which can be mapped once more; otherwise None.

    The views then own the lease under handle. Raises ValueError when the runs do not fit the layouts, or lie outside
    the arena.
    """
    spans = _spans(layouts, n_rows, offsets, sizes)
    if spans is None or any(at % layout.item_size for (at, _), layout in zip(spans, layouts, strict=True)):
        return None
    low, high = min([at for at, end in spans if at < end], default=0), max(end for _, end in spans)
    if low == high:  # a mapping needs a byte
        return None
    try:
        view = arena.private_view(low, high, spans)
    except OSError:  # as of `can_write`; what is mapped already can still be read
        return None
    weakref.finalize(view, arena.release, handle).atexit = False  # daemon threads may read it
    return [
        PlacedColumn(layout, view[at - low : end - low] if at < end else view[:0], None)
        for layout, (at, end) in zip(layouts, spans, strict=True)
    ]


def _spans(
    layouts: Sequence[ColumnLayout], n_rows: int, offsets: Int64Array, sizes: Int64Array
) -> list[tuple[int, int]] | None:
    """Where each column begins and ends, if the rows of each adjoin."""
    column_bytes = [layout.size_of(n_rows) for layout in layouts]
    pieces = column_pieces(offsets, sizes, column_bytes)
    if pieces is not None:
        return [(at, at + size) for at, size in zip(pieces, column_bytes, strict=True)]
    row_bytes = [layout.row_bytes(n_rows) for layout in layouts]
    places = row_places(offsets, sizes, np.concatenate(row_bytes)).reshape(len(layouts), n_rows)
    spans = [_span(starts, of_rows) for starts, of_rows in zip(places, row_bytes, strict=True)]
    return None if None in spans else [span for span in spans if span is not None]


def _span(starts: Int64Array, sizes: Int64Array) -> tuple[int, int] | None:
    filled = sizes > 0
    begins, lengths = starts[filled], sizes[filled]
    if not len(begins):
        return 0, 0
    if (begins[1:] != begins[:-1] + lengths[:-1]).any():
        return None
    return int(begins[0]), int(begins[-1] + lengths[-1])

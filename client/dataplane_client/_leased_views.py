"""Columns of a read as views of the arena: nothing is copied, whatever their size.

The views lie in a mapping of their own that is private to the read: writing to them changes neither the arena nor
another read. The lease is let go of when the last view is gone, and keeps the session alive until then.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dataplane_client._placement import PlacedColumn, row_places
from dataplane_client._shared_arena import SharedArena
from dataplane_client.columns_layout import ITEM_SIZES, ColumnLayout

Int64Array = npt.NDArray[np.int64]


def leased_columns(
    arena: SharedArena,
    handle: int,
    layouts: Sequence[ColumnLayout],
    n_rows: int,
    offsets: Int64Array,
    sizes: Int64Array,
) -> list[PlacedColumn] | None:
    """The columns as views, if the rows of each adjoin in their order and lie as torch needs them; None otherwise.

    The lease under handle then belongs to the views. Raises ValueError when the runs do not fit the layouts.
    """
    row_sizes = [layout.row_bytes(n_rows) for layout in layouts]
    places = row_places(offsets, sizes, np.concatenate(row_sizes)).reshape(len(layouts), n_rows)
    spans = [_span(starts, row_bytes) for starts, row_bytes in zip(places, row_sizes, strict=True)]
    if any(span is None or span[0] % _item_bytes(layout) for span, layout in zip(spans, layouts, strict=True)):
        return None
    known = [span for span in spans if span is not None]
    low, high = min(start for start, _ in known), max(end for _, end in known)
    view = arena.private_view(low, high)
    weakref.finalize(view, arena.let_go, handle)
    return [
        PlacedColumn(layout, view[start - low : end - low], None)
        for layout, (start, end) in zip(layouts, known, strict=True)
    ]


def _span(starts: Int64Array, sizes: Int64Array) -> tuple[int, int] | None:
    """Where a column begins and ends, if its rows adjoin; an empty one lies where its first row would."""
    filled = sizes > 0
    begins, lengths = starts[filled], sizes[filled]
    if not len(begins):
        return int(starts[0]), int(starts[0])
    if (begins[1:] != begins[:-1] + lengths[:-1]).any():
        return None
    return int(begins[0]), int(begins[-1] + lengths[-1])


def _item_bytes(layout: ColumnLayout) -> int:
    return 1 if layout.kind == "object" else ITEM_SIZES[layout.dtype]

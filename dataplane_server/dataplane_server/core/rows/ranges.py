"""Ranges of bytes as arrays: the bytes of rows, in order, as the fewest pieces that lie side by side."""

from __future__ import annotations

import numpy as np

from dataplane_server.core.calls.values import BoolArray, Int64Array, Run, Runs


def column_pieces(offsets: Int64Array, sizes: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Starts and lengths of the bytes of the rows of columns (a column is a row of the arrays), in this order, as the
    fewest pieces that each belong to one column. Empty ones are dropped.
    """
    begins = np.ones(offsets.shape, np.bool_)
    np.not_equal(offsets[:, 1:], offsets[:, :-1] + sizes[:, :-1], out=begins[:, 1:])
    if not sizes.all():  # the offset of an empty piece says nothing about the next one
        merged = [_merge(*column) for column in zip(offsets, sizes, strict=True)]
        return np.concatenate([starts for starts, _ in merged]), np.concatenate([lengths for _, lengths in merged])
    return _joined(offsets.ravel(), sizes.ravel(), begins.ravel())


def merged_runs(offsets: Int64Array, sizes: Int64Array) -> list[Run]:
    """The same bytes in the same order, as the fewest runs. Empty pieces are dropped."""
    return list(Runs(*_merge(offsets, sizes)))


def ranges_of(offsets: Int64Array, sizes: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Starts and ends of the bytes of rows, in order and joined."""
    starts, lengths = _merge(offsets, sizes)
    if np.count_nonzero(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")  # rows of one put are mostly in order
        starts, lengths = _merge(starts[order], lengths[order])
    return starts, starts + lengths


def _merge(offsets: Int64Array, sizes: Int64Array) -> tuple[Int64Array, Int64Array]:
    if not sizes.all():
        keep = np.flatnonzero(sizes)
        offsets, sizes = offsets[keep], sizes[keep]
    begins = np.ones(len(offsets), np.bool_)
    np.not_equal(offsets[1:], offsets[:-1] + sizes[:-1], out=begins[1:])
    return _joined(offsets, sizes, begins)


def _joined(offsets: Int64Array, sizes: Int64Array, begins: BoolArray) -> tuple[Int64Array, Int64Array]:
    """Join each piece to the one before it, unless a run begins there."""
    first = np.flatnonzero(begins)
    return offsets[first], np.add.reduceat(sizes, first) if len(first) else sizes

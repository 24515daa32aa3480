"""The arguments of a call, and the check that no byte outside the arrays is read or written.

The check works on copies of the index arrays, which no other thread can change between check and call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from dataplane_client._common.arrays import ByteArray, Int64Array

PATTERN_SIZES: Final = (1, 2, 4, 8, 16)
_UINT8: Final = np.dtype(np.uint8)
_INT64: Final = np.dtype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RowCopy:
    """N rows of bytes: ``sizes[i]`` bytes from ``source[source_starts[i]]`` on go to ``target[target_starts[i]]`` on.

    target and source are contiguous 1-D arrays; target is writable. The next ``fills[i]`` bytes of the target behind
    row i are filled with repetitions of fill, the bytes of one element (1, 2, 4, 8 or 16 of them); fills are multiples
    of its length. Without fills nothing is filled. Starts may be any byte, aligned or not.

    Rows may share source bytes. Two rows that write the same byte, or a target that is also a source, give
    unspecified bytes there; this is not checked.
    """

    target: ByteArray
    target_starts: Int64Array
    source: ByteArray
    source_starts: Int64Array
    sizes: Int64Array
    fills: Int64Array | None = None
    fill: bytes = b"\0"


@dataclass(frozen=True, slots=True, eq=False)
class CheckedCopies:
    """Copies whose rows were checked to be inside their arrays."""

    copies: tuple[RowCopy, ...]
    ends: list[int]  # rows ends[k - 1] to ends[k], not included, belong to copy k
    table: Int64Array  # (4, rows): target starts, source starts, sizes, fills
    total: int  # bytes to write, rows and fills


def check_copies(copies: Sequence[RowCopy], *, only_read: bool = False) -> CheckedCopies:
    """Raises ValueError for rows outside their arrays, TypeError for unsupported arrays, naming copy, row and rule.
    only_read: nothing will be written, so targets may be anything.
    """
    copies = tuple(copies)
    for index, copy in enumerate(copies):
        _check_arrays(index, copy, only_read=only_read)
    ends = list(accumulate(len(copy.sizes) for copy in copies))
    table = _table_of(copies, ends)
    _check_rows(copies, ends, table, only_read=only_read)
    return CheckedCopies(copies, ends, table, total=int(table[2:].sum()))


def _check_arrays(index: int, copy: RowCopy, *, only_read: bool) -> None:
    for name, array in (("target", copy.target), ("source", copy.source)):
        if array.dtype != _UINT8 or array.ndim != 1 or not array.flags.c_contiguous:
            raise TypeError(
                f"copy {index}: {name} must be a contiguous 1-D uint8 array, got {array.dtype} of shape {array.shape}"
            )
    if not copy.target.flags.writeable and not only_read:
        raise TypeError(f"copy {index}: target is read-only")
    if len(copy.fill) not in PATTERN_SIZES:
        raise ValueError(f"copy {index}: fill must have one of {PATTERN_SIZES} bytes, got {len(copy.fill)}")
    for name, numbers in _numbers_of(copy):
        if numbers.dtype != _INT64 or numbers.ndim != 1 or len(numbers) != len(copy.sizes):
            raise TypeError(
                f"copy {index}: {name} must be a 1-D int64 array as long as sizes ({len(copy.sizes)}), "
                f"got {numbers.dtype} of shape {numbers.shape}"
            )


def _numbers_of(copy: RowCopy) -> list[tuple[str, Int64Array]]:
    named = [("sizes", copy.sizes), ("target_starts", copy.target_starts), ("source_starts", copy.source_starts)]
    return named if copy.fills is None else [*named, ("fills", copy.fills)]


def _table_of(copies: tuple[RowCopy, ...], ends: list[int]) -> Int64Array:
    table = np.zeros((4, ends[-1] if ends else 0), np.int64)
    begin = 0
    for copy, end in zip(copies, ends, strict=True):
        table[0, begin:end] = copy.target_starts
        table[1, begin:end] = copy.source_starts
        table[2, begin:end] = copy.sizes
        if copy.fills is not None:
            table[3, begin:end] = copy.fills
        begin = end
    return table


def _check_rows(copies: tuple[RowCopy, ...], ends: list[int], table: Int64Array, *, only_read: bool) -> None:
    """Checks each rule before it computes the next one, so that no difference overflows."""
    if table.min(initial=0) < 0:
        index, row, _ = _first(table.min(axis=0) < 0, ends)
        raise ValueError(f"copy {index}, row {row}: a start, size or fill is negative")
    limits = [(len(copy.target), len(copy.source), len(copy.fill) - 1) for copy in copies]
    counts = [len(copy.sizes) for copy in copies]
    target_limit, source_limit, odd_bits = np.repeat(np.array(limits, np.int64).reshape(-1, 3).T, counts, axis=1)
    target_starts, source_starts, sizes, fills = table
    _check_room("source", source_limit, source_starts, sizes, ends)
    if only_read:
        return
    _check_room("target", target_limit, target_starts, sizes, ends)
    if all(copy.fills is None for copy in copies):
        return
    _check_room("target", target_limit, target_starts + sizes, fills, ends)
    if (odd := fills & odd_bits).any():
        index, row, at = _first(odd.astype(np.bool_), ends)
        raise ValueError(f"copy {index}, row {row}: a fill of {fills[at]} bytes by elements of {odd_bits[at] + 1}")


def _check_room(name: str, limits: Int64Array, starts: Int64Array, sizes: Int64Array, ends: list[int]) -> None:
    outside: npt.NDArray[np.bool_] = sizes > limits - starts
    if outside.any():
        index, row, at = _first(outside, ends)
        raise ValueError(
            f"copy {index}, row {row}: {sizes[at]} bytes from byte {starts[at]} on, but the {name} has {limits[at]}"
        )


def _first(wrong: npt.NDArray[np.bool_], ends: list[int]) -> tuple[int, int, int]:
    """The first wrong row: its copy, its number there, its place among all."""
    at = int(np.argmax(wrong))
    index = bisect_right(ends, at)
    return index, at - (ends[index - 1] if index else 0), at

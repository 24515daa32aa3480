"""Both implementations against lists of bytes.

White-box: users get one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from dataplane_client._common.arrays import Int64Array
from dataplane_client._values.row_kernels import RowCopy, kernel_name
from dataplane_client._values.row_kernels._copies import PATTERN_SIZES, CheckedCopies, check_copies
from dataplane_client._values.row_kernels._native import copy_rows_in_c
from dataplane_client._values.row_kernels._plain import copy_rows_in_numpy, hash_rows_in_python

UNTOUCHED = 0xEE
HUGE_ROW = 3_000_001
PAST_THE_CACHES = 26_000_001
"""Bytes of a row that the compiled kernel writes past the caches."""

compiled = pytest.mark.skipif(kernel_name != "c", reason="no compiled kernel")


def in_c(threads: int) -> Callable[[CheckedCopies], object]:
    return lambda checked: copy_rows_in_c(checked, threads)


IMPLEMENTATIONS = [
    pytest.param(copy_rows_in_numpy, id="numpy"),
    pytest.param(in_c(1), id="c", marks=compiled),
    pytest.param(in_c(3), id="c-3-threads", marks=compiled),
]


@dataclass(frozen=True)
class Row:
    gap: int
    source_start: int
    size: int
    elements: int


@st.composite
def row_copies(draw: st.DrawFn) -> RowCopy:
    """Rows at any alignment, in any order of their targets, from sources that may overlap, with fills or without."""
    source = np.frombuffer(draw(st.binary(min_size=1, max_size=600)), np.uint8)
    fill = draw(st.sampled_from(PATTERN_SIZES).flatmap(lambda size: st.binary(min_size=size, max_size=size)))
    starts = st.integers(0, len(source))
    rows = draw(
        st.lists(st.builds(Row, st.integers(0, 3), starts, st.integers(0, 600), st.integers(0, 40)), max_size=8)
    )
    sizes = [min(row.size, len(source) - row.source_start) for row in rows]
    fills = [row.elements * len(fill) for row in rows] if draw(st.booleans()) else None
    target_starts, end = [0] * len(rows), 0
    for index in draw(st.permutations(range(len(rows)))):
        target_starts[index] = end + rows[index].gap
        end = target_starts[index] + sizes[index] + (fills[index] if fills else 0)
    skipped = draw(st.integers(0, 20))
    target = np.full(end + skipped + 5, UNTOUCHED, np.uint8)[skipped:]
    source_starts = numbers([row.source_start for row in rows])
    filled = None if fills is None else numbers(fills)
    return RowCopy(target, numbers(target_starts), source, source_starts, numbers(sizes), filled, fill)


def numbers(values: list[int]) -> Int64Array:
    return np.array(values, np.int64)


def expected_target(copy: RowCopy) -> bytes:
    target, source = bytearray(copy.target.tobytes()), copy.source.tobytes()
    fills = [0] * len(copy.sizes) if copy.fills is None else copy.fills.tolist()
    rows = zip(copy.target_starts.tolist(), copy.source_starts.tolist(), copy.sizes.tolist(), fills, strict=True)
    for target_start, source_start, size, fill in rows:
        row = source[source_start : source_start + size] + copy.fill * (fill // len(copy.fill))
        target[target_start : target_start + len(row)] = row
    return bytes(target)


@pytest.mark.parametrize("copy_checked", IMPLEMENTATIONS)
@settings(deadline=None)  # the cores may be busy with other processes
@given(copies=st.lists(row_copies(), max_size=4))
def test_rows_and_fills_land_where_they_belong_and_nothing_else_changes(
    copy_checked: Callable[[CheckedCopies], object], copies: list[RowCopy]
) -> None:
    expected = [expected_target(copy) for copy in copies]
    copy_checked(check_copies(copies))
    assert [copy.target.tobytes() for copy in copies] == expected


@pytest.mark.parametrize("row", [HUGE_ROW, PAST_THE_CACHES])
@pytest.mark.parametrize("copy_checked", IMPLEMENTATIONS)
def test_huge_rows_and_fills_are_cut_into_pieces_that_fit_together(
    copy_checked: Callable[[CheckedCopies], object], row: int
) -> None:
    copy = huge_copy(row)
    expected = expected_target(copy)
    copy_checked(check_copies([copy]))
    assert copy.target.tobytes() == expected


def huge_copy(row: int = HUGE_ROW) -> RowCopy:
    source = np.random.default_rng(0).integers(0, 256, row + 5, np.uint8)
    fills = numbers([16 * 40_000, 0, 16 * 20_001])
    sizes = numbers([row, 0, 777_777])
    target_starts = np.cumsum(sizes + fills) - (sizes + fills) + 3
    target = np.full(int((sizes + fills).sum()) + 9, UNTOUCHED, np.uint8)
    return RowCopy(target, target_starts, source, numbers([5, 0, 1]), sizes, fills, bytes(range(1, 17)))


@compiled
def test_one_huge_row_is_shared_by_the_threads_asked_for() -> None:
    assert copy_rows_in_c(check_copies([huge_copy()]), 3) == 3


@pytest.mark.parametrize("threads", [pytest.param(1, marks=compiled), pytest.param(3, marks=compiled), 0])
@pytest.mark.parametrize("repeats", [1, 8])
def test_rows_of_every_size_are_hashed_as_they_are_copied(threads: int, repeats: int) -> None:
    """threads: of the compiled kernel; 0 for the other one. repeats: with 8 they are written past the caches."""
    sizes = numbers([*range(2600), 70_001] * repeats)
    source = np.random.default_rng(7).integers(0, 256, int(sizes.sum()) + 1, np.uint8)[1:]
    starts, target = np.cumsum(sizes) - sizes, np.zeros(len(source) + 3 * len(sizes), np.uint8)
    targets = starts + 3 * np.arange(len(sizes))
    copies = check_copies([RowCopy(target, targets, source, starts, sizes)])
    hashes, alone = np.zeros((2, len(sizes)), np.int64)
    if threads:
        copy_rows_in_c(copies, threads, hashes)
        copy_rows_in_c(copies, threads, alone, only_hash=True)
    else:
        copy_rows_in_numpy(copies)
        for found in (hashes, alone):
            hash_rows_in_python(copies, found)
    rows = [(at, to, size) for at, to, size in zip(starts, targets, sizes, strict=True) if size]
    assert all(np.array_equal(source[at : at + size], target[to : to + size]) for at, to, size in rows)
    expected = [xxh3_64_intdigest(source[at : at + size].data) for at, _, size in rows]
    for found in (hashes, alone):
        assert found[sizes > 0].view(np.uint64).tolist() == expected
        assert not found[sizes == 0].any()

"""The values of a put, padded or not, copied into messages, chunks and scattered runs, against lists of bytes.

White-box: a server chooses few of the runs that are tried here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane_client._memory.arena_writes import fill_runs
from dataplane_client._values.columns_layout import WireColumn, join_values, split_into_chunks, total_bytes

Int64Array = npt.NDArray[np.int64]
UNTOUCHED = 0xEE


@dataclass(frozen=True)
class Source:
    """A column, and the bytes of all its rows."""

    column: WireColumn
    data: bytes


def int64(*values: int) -> Int64Array:
    return np.array(values, np.int64)


def adjoining(data: bytes) -> Source:
    """One dense row that holds data."""
    return Source(WireColumn("x", "dense", "uint8", (len(data),), None, memoryview(data)), data)


@st.composite
def padded(draw: st.DrawFn) -> Source:
    """Rows of a padded tensor of 16-bit entries, (N, width, trailing), some of them empty."""
    n_rows, width, trailing = draw(st.integers(1, 6)), draw(st.integers(0, 5)), draw(st.integers(0, 3))
    lengths = draw(st.lists(st.integers(0, width), min_size=n_rows, max_size=n_rows))
    row_bytes, entry = width * trailing * 2, trailing * 2
    tensor = draw(st.binary(min_size=n_rows * row_bytes, max_size=n_rows * row_bytes))
    starts = np.arange(n_rows, dtype=np.int64) * row_bytes
    column = WireColumn("x", "jagged", "int16", (trailing,), int64(*lengths), memoryview(tensor), starts)
    rows = [tensor[row * row_bytes :][: length * entry] for row, length in enumerate(lengths)]
    return Source(column, b"".join(rows))


sources = st.lists(st.one_of(st.binary(max_size=40).map(adjoining), padded()), max_size=6)


def values_of(given_sources: list[Source]) -> bytes:
    return b"".join(source.data for source in given_sources)


@settings(deadline=None, max_examples=100)
@given(sources)
def test_joined_values_are_the_bytes_of_all_rows_in_order(given_sources: list[Source]) -> None:
    columns = [source.column for source in given_sources]
    assert join_values(columns) == values_of(given_sources)
    assert total_bytes(columns) == len(values_of(given_sources))


@settings(deadline=None, max_examples=100)
@given(sources, st.integers(1, 50))
def test_chunks_hold_all_bytes_in_order_and_are_full_but_the_last(given_sources: list[Source], size: int) -> None:
    sent = [b"".join(views) for views in split_into_chunks([source.column for source in given_sources], size)]
    assert b"".join(sent) == values_of(given_sources)
    assert all(len(chunk) == size for chunk in sent[:-1])
    assert all(sent)


def test_chunks_are_views() -> None:
    data = bytearray(b"abcd")
    column = WireColumn("x", "dense", "uint8", (4,), None, memoryview(data))
    first, second = split_into_chunks([column], 2)
    data[:] = b"ABCD"
    assert (b"".join(first), b"".join(second)) == (b"AB", b"CD")


# -- room in an arena --------------------------------------------------------------------------------------------------


@st.composite
def rooms(draw: st.DrawFn, size: int) -> tuple[Int64Array, Int64Array, int]:
    """Runs that hold size bytes, in any order and cut anywhere, and the size of the arena they lie in."""
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), max_size=6))) if size > 1 else []
    sizes = [end - start for start, end in itertools.pairwise([0, *cuts, size])] if size else []
    offsets, end = [0] * len(sizes), draw(st.integers(0, 5))
    for index in draw(st.permutations(range(len(sizes)))):
        offsets[index] = end
        end += sizes[index] + draw(st.integers(0, 5))
    return int64(*offsets), int64(*sizes), end + 3


@settings(deadline=None, max_examples=200)
@given(sources, st.data())
def test_room_cut_anywhere_holds_all_bytes_in_order_and_nothing_else_is_touched(
    given_sources: list[Source], data: st.DataObject
) -> None:
    values = values_of(given_sources)
    offsets, sizes, arena_bytes = data.draw(rooms(len(values)))
    expected, rest = bytearray([UNTOUCHED]) * arena_bytes, values
    for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
        expected[offset : offset + size], rest = rest[:size], rest[size:]
    arena = np.full(arena_bytes, UNTOUCHED, np.uint8)
    fill_runs(arena, offsets, sizes, [source.column for source in given_sources])
    assert arena.tobytes() == bytes(expected)


@pytest.mark.parametrize(
    ("offsets", "sizes", "message"),
    [
        ([0], [3], "3 bytes for 4"),
        ([0, 10], [3, 2], "5 bytes for 4"),
        ([], [], "0 bytes for 4"),
        ([17], [4], "row"),
        ([0, -1], [2, 2], "row"),
        ([0, 1 << 40], [2, 2], "row"),
    ],
    ids=["too little", "too much", "none", "over the end of the arena", "before the arena", "far behind the arena"],
)
def test_room_that_does_not_fit_is_refused_before_anything_is_written(
    offsets: list[int], sizes: list[int], message: str
) -> None:
    arena = np.full(20, UNTOUCHED, np.uint8)
    with pytest.raises(ValueError, match=message):
        fill_runs(arena, int64(*offsets), int64(*sizes), [adjoining(b"ab").column, adjoining(b"cd").column])
    assert arena.tobytes() == bytes([UNTOUCHED]) * 20

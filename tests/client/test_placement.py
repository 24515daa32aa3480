"""Where the values of a read go, against lists of bytes: whatever way they come, each row ends where it belongs.

White-box: a server chooses few of the runs and chunks that are tried here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane_client._memory.placement import Destination, Padding, PlacedColumn, ReadBuffers
from dataplane_client._values.columns_layout import ColumnLayout
from dataplane_client._values.digests import DigestCheck
from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.element_types import ITEM_SIZES, Kind

Int64Array = npt.NDArray[np.int64]
DTYPES = ["uint8", "int16", "float32", "int64", "complex128"]


@dataclass(frozen=True)
class Column:
    """A column, how it is wanted, and its rows."""

    layout: ColumnLayout
    padding: Padding | None
    rows: list[bytes]

    def placed(self) -> bytes:
        """What its buffer must hold, made row by row."""
        if self.padding is None:
            return b"".join(self.rows)
        trailing = self.layout.row_shape[1:] if self.layout.kind == "dense" else self.layout.row_shape
        entries = self.padding.width * int(np.prod(trailing, dtype=int))
        item = len(self.padding.element)
        return b"".join(row + self.padding.element * (entries - len(row) // item) for row in self.rows)


def int64(*values: int) -> Int64Array:
    return np.array(values, np.int64)


@st.composite
def columns(draw: st.DrawFn, name: str, n_rows: int) -> Column:
    kind: Kind = draw(st.sampled_from(["dense", "jagged", "object"]))
    dtype = "" if kind == "object" else draw(st.sampled_from(DTYPES))
    item = ITEM_SIZES.get(dtype, 1)
    trailing = () if kind == "object" else tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    entry = int(np.prod(trailing, dtype=int)) * item
    if kind == "dense":
        sizes = draw(st.one_of(st.none(), st.integers(0, 4)))
        row_shape = trailing if sizes is None else (sizes, *trailing)
        lengths, row_sizes, widest = None, [(1 if sizes is None else sizes) * entry] * n_rows, sizes
    else:
        counts = draw(st.lists(st.integers(0, 5), min_size=n_rows, max_size=n_rows))
        row_shape, lengths, widest = trailing, int64(*counts), max(counts)
        row_sizes = [count * entry for count in counts]
    padding = None
    if kind != "object" and widest is not None and draw(st.booleans()):
        element = draw(st.one_of(st.just(bytes(item)), st.binary(min_size=item, max_size=item)))
        padding = Padding(widest + draw(st.integers(0, 3)), element)
    rows = [draw(st.binary(min_size=size, max_size=size)) for size in row_sizes]
    return Column(ColumnLayout(name, kind, dtype, row_shape, lengths), padding, rows)


@st.composite
def reads(draw: st.DrawFn) -> list[Column]:
    n_rows = draw(st.integers(1, 6))
    return [draw(columns(f"x{number}", n_rows)) for number in range(draw(st.integers(1, 4)))]


def buffers_of(read: list[Column]) -> ReadBuffers:
    wanted = {column.layout.name: column.padding for column in read}
    return ReadBuffers([c.layout for c in read], len(read[0].rows), Destination(lambda layout: wanted[layout.name]))


def values_of(read: list[Column]) -> bytes:
    return b"".join(row for column in read for row in column.rows)


def assert_placed(placed: list[PlacedColumn], read: list[Column]) -> None:
    assert [column.layout for column in placed] == [column.layout for column in read]
    assert [column.width for column in placed] == [None if c.padding is None else c.padding.width for c in read]
    assert [column.values.tobytes() for column in placed] == [column.placed() for column in read]


# -- values that lie in an arena ---------------------------------------------------------------------------------------


def scattered(draw: Callable[..., Any], pieces: list[bytes]) -> tuple[npt.NDArray[np.uint8], Int64Array]:
    """An arena that holds the pieces in some order, with gaps, and where each begins."""
    arena, offsets = bytearray(b"\xee" * draw(st.integers(0, 9))), [0] * len(pieces)
    for index in draw(st.permutations(range(len(pieces)))):
        offsets[index] = len(arena)
        arena += pieces[index] + b"\xee" * draw(st.integers(0, 9))
    return np.frombuffer(bytes(arena) + b"\xee", np.uint8), int64(*offsets)


@settings(deadline=None, max_examples=200)
@given(reads(), st.data())
def test_runs_of_whole_rows_are_copied_to_their_places(read: list[Column], data: st.DataObject) -> None:
    rows = [row for column in read for row in column.rows]
    last = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))  # whether a run ends behind it
    pieces = [b""]
    for row, ends in zip(rows, last, strict=True):
        pieces[-1] += row
        if ends:
            pieces.append(b"")
    pieces = [piece for piece in pieces if piece]
    arena, offsets = scattered(data.draw, pieces)
    buffers = buffers_of(read)
    buffers.copy_runs(arena, offsets, int64(*map(len, pieces)))
    assert buffers.size_bytes == len(values_of(read))
    assert_placed(buffers.columns, read)


LAYOUT = ColumnLayout("x", "jagged", "uint8", (), int64(2, 0, 3))
ADJOINING = Destination(lambda layout: None)


@pytest.mark.parametrize(
    ("offsets", "sizes", "message"),
    [
        ([0], [4], "4 bytes for 5"),
        ([0], [6], "6 bytes for 5"),
        ([], [], "0 bytes for 5"),
        ([0, 8], [3, 2], "row"),
        ([0, 8, 16], [1, 1, 3], "row"),
        ([-1], [5], "row"),
        ([96], [5], "row"),
        ([1 << 40], [5], "row"),
    ],
    ids=["few bytes", "many bytes", "no runs", "a row in two", "one in two", "before", "over the end", "far behind"],
)
def test_runs_that_do_not_fit_the_rows_or_the_memory_are_refused(
    offsets: list[int], sizes: list[int], message: str
) -> None:
    buffers = ReadBuffers([LAYOUT], 3, ADJOINING)
    with pytest.raises(ValueError, match=message):
        buffers.copy_runs(np.zeros(100, np.uint8), int64(*offsets), int64(*sizes))


@pytest.mark.parametrize("digests", [b"abc", bytes(16)], ids=["cut", "too many"])
def test_digests_that_are_not_one_for_each_value_are_an_error_of_the_server(digests: bytes) -> None:
    with pytest.raises(InternalError, match=f"{len(digests)} bytes of digests"):
        DigestCheck(digests, pb.ReadColumnsRequest(sample_ids=["a"], fields=["x"]), "a read")


# -- values that come in chunks ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(reads(), st.data())
def test_chunks_cut_anywhere_are_copied_to_their_places(read: list[Column], data: st.DataObject) -> None:
    values = values_of(read)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=6)))
    buffers = buffers_of(read)
    stream = buffers.stream()
    for start, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
        if values:
            stream.add(start, memoryview(values)[start:end])
    stream.finish()
    assert_placed(buffers.columns, read)


@pytest.mark.parametrize(
    ("position", "data"),
    [(1, b"a"), (3, b"a"), (2, b"abcd"), (0, b"abcde")],
    ids=["twice", "a gap", "more than declared", "all of it again"],
)
def test_a_chunk_that_does_not_continue_the_stream_is_refused_and_changes_nothing(position: int, data: bytes) -> None:
    buffers = ReadBuffers([LAYOUT], 3, ADJOINING)
    stream = buffers.stream()
    stream.add(0, memoryview(b"12"))
    with pytest.raises(ValueError, match=f"{len(data)} bytes at byte {position};.* 2 of 5"):
        stream.add(position, memoryview(data))
    with pytest.raises(ValueError, match="2 of 5 bytes"):
        stream.finish()
    stream.add(2, memoryview(b"345"))
    stream.finish()
    assert buffers.columns[0].values.tobytes() == b"12345"

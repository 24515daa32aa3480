"""Columns as views of an arena, against plain bytes: over a real server's memory and a session that holds it.

White-box: a server chooses few of the runs that are tried here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import grpc
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataplane_client._memory.leased_views import leased_columns
from dataplane_client._memory.shared_arena import SharedArena
from dataplane_client._values.columns_layout import ColumnLayout
from dataplane_server.testing import running_server
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from rl_dataplane.v1.element_types import ITEM_SIZES

BUDGET = 1 << 20
Int64Array = npt.NDArray[np.int64]


class RecordedArena(SharedArena):
    """A session that remembers what it let go of."""

    gone: list[int]

    def release(self, *handles: int) -> None:
        self.gone.extend(handles)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedArena]:
    listen = f"unix://{tmp_path_factory.mktemp('socket')}/a.sock"
    with running_server(listen=listen, memory_bytes=BUDGET), grpc.insecure_channel(listen) as channel:
        status = pb_grpc.DataPlaneServiceStub(channel).GetServerStatus(pb.GetServerStatusRequest(), timeout=200)
        arena = RecordedArena(f"{listen.removeprefix('unix://')}.local", status.shared_memory.nonce)
        arena.gone = []
        arena.writable[:BUDGET] = np.arange(BUDGET, dtype=np.uint32).astype(np.uint8) * 7
        yield arena


def int64(*values: int) -> Int64Array:
    return np.array(values, np.int64)


def jagged(*lengths: int, dtype: str = "uint8", name: str = "x") -> ColumnLayout:
    return ColumnLayout(name, "jagged", dtype, (), int64(*lengths))


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_columns_whose_rows_adjoin_are_views_of_their_bytes(arena: RecordedArena, data: st.DataObject) -> None:
    n_rows = data.draw(st.integers(1, 5))
    layouts, runs, expected = [], [], []
    for number in range(data.draw(st.integers(1, 3))):
        dtype = data.draw(st.sampled_from(["uint8", "int16", "float64"]))
        item = ITEM_SIZES[dtype]
        lengths = data.draw(st.lists(st.integers(0, 3000), min_size=n_rows, max_size=n_rows))
        start = item * data.draw(st.integers(0, BUDGET // 16 - 3000))
        layouts.append(jagged(*lengths, dtype=dtype, name=f"x{number}"))
        ends = [0, *itertools.accumulate(length * item for length in lengths)]
        cut = data.draw(st.integers(0, n_rows))  # one run or two, whose border is that of a row
        runs += [(start, ends[cut]), (start + ends[cut], ends[-1] - ends[cut])]
        expected.append(arena.readable[start : start + ends[-1]].tobytes())
    runs = [(start, size) for start, size in runs if size]
    if not runs:
        return
    offsets, sizes = (int64(*numbers) for numbers in zip(*runs, strict=True))
    columns = leased_columns(arena, 1, layouts, n_rows, offsets, sizes)
    if columns is None:  # only where a column without a byte begins nowhere in particular
        assert b"" in expected
        return
    assert [column.values.tobytes() for column in columns] == expected
    assert all(column.values.flags.writeable for column in columns)
    assert [column.width for column in columns] == [None] * len(layouts)


@pytest.mark.parametrize(
    ("layouts", "offsets", "sizes"),
    [
        ([jagged(3, 4)], [100, 104], [3, 4]),
        ([jagged(3, 4)], [100, 90], [3, 4]),
        ([jagged(3, 4), jagged(1, 1)], [100, 200, 300], [7, 1, 1]),
        ([jagged(2, 2, dtype="int16")], [101], [8]),
        ([jagged(0, 0)], [], []),
    ],
    ids=["a gap", "in the other order", "one of two columns", "not as its items want it", "no bytes"],
)
def test_what_torch_cannot_view_is_not_viewed(
    arena: RecordedArena, layouts: list[ColumnLayout], offsets: list[int], sizes: list[int]
) -> None:
    arena.gone.clear()
    assert leased_columns(arena, 5, layouts, 2, int64(*offsets), int64(*sizes)) is None
    assert arena.gone == []  # the lease stays the caller's


@pytest.mark.parametrize(
    ("offsets", "sizes", "message"),
    [
        ([100], [6], "runs of 6 bytes for 7"),
        ([100], [8], "runs of 8"),
        ([100, 200], [2, 5], "row"),
        ([-8], [7], "arena"),
        ([1 << 40], [7], "arena"),
    ],
    ids=["too little", "too much", "a row in two", "before the arena", "behind the arena"],
)
def test_runs_that_do_not_fit_are_refused(
    arena: RecordedArena, offsets: list[int], sizes: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        leased_columns(arena, 5, [jagged(3, 4)], 2, int64(*offsets), int64(*sizes))

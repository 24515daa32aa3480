"""How many bytes a column has. `tests/hostile/requests.py` has what it may not look like."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.caller import int64

from dataplane_server.core.calls.columns import MAX_ENTRIES, ColumnSpec, Kept, Shape, make_columns
from dataplane_server.core.calls.limits import Limits
from rl_dataplane.v1.element_types import ITEM_SIZES


def test_the_size_of_a_column_is_exact_where_the_bytes_of_its_rows_overflow() -> None:
    columns = make_columns(
        [ColumnSpec("x", Shape("jagged", "float32", (1 << 18, 1 << 20)), int64([MAX_ENTRIES] * 9))], 9, Limits()
    )
    assert columns.size_bytes == 9 * MAX_ENTRIES << 40
    nothing = np.zeros((1, 9), np.int64)
    assert columns.appended_to(Kept(nothing, nothing)).size_bytes == columns.size_bytes


@pytest.mark.parametrize("dtype", sorted(ITEM_SIZES.keys() & np.sctypeDict.keys()))
def test_elements_have_as_many_bytes_as_numpy_gives_them(dtype: str) -> None:
    assert ITEM_SIZES[dtype] == np.dtype(dtype).itemsize


def test_a_column_of_the_greatest_rank_and_length_is_fine() -> None:
    make_columns([ColumnSpec("x", Shape("dense", "float32", (MAX_ENTRIES, *[1] * 7)))], 2, Limits())
    make_columns([ColumnSpec("x", Shape("jagged", "float32", (1,) * 8), int64([0, MAX_ENTRIES]))], 2, Limits())

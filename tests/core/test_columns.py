"""What a column may look like, how many bytes it has, and which shapes can share a field."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.caller import int64

from dataplane_server.core.calls.columns import MAX_ENTRIES, ColumnSpec, Shape, make_columns
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from rl_dataplane.v1.element_types import ITEM_SIZES

OBJECT = Shape("object", "", ())


def dense(*row_shape: int, dtype: str = "float32") -> Shape:
    return Shape("dense", dtype, row_shape)


def jagged(*trailing: int, dtype: str = "float32") -> Shape:
    return Shape("jagged", dtype, trailing)


def of_rows(shape: Shape, *lengths: int) -> ColumnSpec:
    return ColumnSpec("x", shape, int64(lengths))


def test_the_size_of_a_column_is_exact_where_the_bytes_of_its_rows_overflow() -> None:
    columns = make_columns([ColumnSpec("x", jagged(1 << 18, 1 << 20), int64([MAX_ENTRIES] * 9))], 9, Limits())
    assert columns.size_bytes == 9 * MAX_ENTRIES << 40


@pytest.mark.parametrize("dtype", sorted(ITEM_SIZES.keys() & np.sctypeDict.keys()))
def test_elements_have_as_many_bytes_as_numpy_gives_them(dtype: str) -> None:
    assert ITEM_SIZES[dtype] == np.dtype(dtype).itemsize


MALFORMED = {
    "no kind": (ColumnSpec("x", Shape("", "int8", ())), Reason.INVALID_REQUEST, "kind"),  # type: ignore[arg-type]
    "no element type": (ColumnSpec("x", dense(dtype="")), Reason.INVALID_REQUEST, "element type"),
    "an unknown type": (ColumnSpec("x", dense(dtype="int7")), Reason.INVALID_REQUEST, "element type"),
    "objects of a type": (of_rows(Shape("object", "int8", ()), 1, 1), Reason.INVALID_REQUEST, "element type"),
    "objects of a shape": (of_rows(Shape("object", "", (2,)), 1, 1), Reason.INVALID_REQUEST, "row shape"),
    "nine dimensions": (ColumnSpec("x", dense(*[1] * 9)), Reason.INVALID_REQUEST, "9"),
    "a row too long": (ColumnSpec("x", dense(1 << 31)), Reason.INVALID_REQUEST, "too large"),
    "an entry too large": (of_rows(jagged(1 << 20, 1 << 20), 1, 1), Reason.INVALID_REQUEST, "too large"),
    "dense with lengths": (of_rows(dense(3), 3, 3), Reason.INVALID_REQUEST, "dense"),
    "jagged without lengths": (ColumnSpec("x", jagged()), Reason.ROW_COUNT_MISMATCH, "0 rows"),
    "too few lengths": (of_rows(OBJECT, 1), Reason.ROW_COUNT_MISMATCH, "1 rows"),
    "too many lengths": (of_rows(jagged(), 1, 1, 1), Reason.ROW_COUNT_MISMATCH, "3 rows"),
    "a negative length": (of_rows(jagged(), 1, -1), Reason.INVALID_REQUEST, "row 1"),
    "a length over 31 bits": (of_rows(jagged(), 1 << 31, 1), Reason.INVALID_REQUEST, "row 0"),
}


@pytest.mark.parametrize(("spec", "reason", "word"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_column_is_refused_by_field_and_rule(spec: ColumnSpec, reason: Reason, word: str) -> None:
    with pytest.raises(Refusal) as caught:
        make_columns([spec], 2, Limits())
    assert caught.value.reason is reason
    assert "'x'" in caught.value.message
    assert word in caught.value.message
    assert caught.value.metadata["field"] == "x"


def test_a_column_of_the_greatest_rank_and_length_is_fine() -> None:
    make_columns([ColumnSpec("x", dense(MAX_ENTRIES, *[1] * 7))], 2, Limits())
    make_columns([ColumnSpec("x", jagged(*[1] * 8), int64([0, MAX_ENTRIES]))], 2, Limits())

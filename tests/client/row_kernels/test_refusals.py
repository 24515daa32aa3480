"""Whatever lies outside the arrays, or is no array of the right kind, is refused before a byte is written."""

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from dataplane_client._values.row_kernels import RowCopy, copy_rows

HIGHEST = 2**63 - 1
GOOD = RowCopy(
    target=np.zeros(40, np.uint8),
    target_starts=np.array([0, 20], np.int64),
    source=np.ones(30, np.uint8),
    source_starts=np.array([0, 10], np.int64),
    sizes=np.array([10, 16], np.int64),
    fills=np.array([8, 4], np.int64),
    fill=b"\1\2\3\4",
)


@pytest.mark.parametrize(
    ("column", "row_1", "message"),
    [
        ("target_starts", -1, "negative"),
        ("source_starts", -1, "negative"),
        ("sizes", -1, "negative"),
        ("fills", -4, "negative"),
        ("target_starts", 25, "16 .* 25 .* 40"),
        ("target_starts", 41, "target .* 40"),
        ("target_starts", HIGHEST, "target .* 40"),
        ("source_starts", 15, "16 .* 15 .* 30"),
        ("source_starts", HIGHEST, "source .* 30"),
        ("sizes", 21, "source .* 30"),
        ("sizes", HIGHEST, "source .* 30"),
        ("fills", 8, "8 .* 36 .* 40"),
        ("fills", HIGHEST - 3, "target .* 40"),
        ("fills", 3, "fill of 3 .* 4"),
    ],
)
def test_a_row_outside_its_arrays_is_refused_by_copy_row_and_rule(column: str, row_1: int, message: str) -> None:
    numbers = np.array([getattr(GOOD, column)[0], row_1], np.int64)
    bad = dataclasses.replace(GOOD, target=GOOD.target.copy(), **{column: numbers})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^copy 1, row 1: .*{message}"):
        copy_rows([GOOD, bad])
    assert not bad.target.any()
    assert not GOOD.target.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": np.zeros((4, 10), np.uint8)}, "target .*uint8"),
        ({"target": np.zeros(80, np.uint8)[::2]}, "target "),
        ({"target": np.zeros(40, np.int8)}, "target .*int8"),
        ({"target": np.frombuffer(bytes(40), np.uint8)}, "target .*read-only"),
        ({"source": np.zeros(60, np.uint8)[::-2]}, "source "),
        ({"sizes": np.zeros((2, 1), np.int64)}, "sizes "),
        ({"source_starts": np.zeros(2, np.int32)}, "source_starts .*int32"),
        ({"target_starts": np.zeros(3, np.int64)}, r"target_starts .*\(2\)"),
        ({"fills": np.zeros(2)}, "fills .*float64"),
    ],
)
def test_arrays_of_another_kind_are_refused(changes: dict[str, npt.NDArray[np.generic]], message: str) -> None:
    with pytest.raises(TypeError, match=f"^copy 0: .*{message}"):
        copy_rows([dataclasses.replace(GOOD, **changes)])  # type: ignore[arg-type]


@pytest.mark.parametrize("fill", [b"", b"123", bytes(32)], ids=len)
def test_a_fill_of_another_length_is_refused(fill: bytes) -> None:
    with pytest.raises(ValueError, match=r"^copy 0: fill "):
        copy_rows([dataclasses.replace(GOOD, fill=fill)])

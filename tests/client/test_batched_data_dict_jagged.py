"""BatchedDataDict with torch.jagged nested tensors as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dataplane_client.batched_data_dict import BatchedDataDict

Batch = BatchedDataDict[Any]


def jagged(*lengths: int) -> torch.Tensor:
    """Row i holds lengths[i] positions, all equal to i."""
    values = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def rows_of(nested: torch.Tensor) -> list[list[Any]]:
    return [row.tolist() for row in nested.unbind()]


def twice(batch: Batch) -> Batch:
    return BatchedDataDict.from_batches([batch, batch])


def test_slice_cuts_out_the_rows_without_copying_values() -> None:
    batch: Batch = BatchedDataDict(a=jagged(2, 0, 3, 1))
    part = batch.slice(1, 4)["a"]
    assert rows_of(part) == [[], [2, 2, 2], [3]]
    assert part.values().untyped_storage().data_ptr() == batch["a"].values().untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        pytest.param(lambda batch: batch.slice(1, 3), [[], [2, 2, 2]], id="slice"),
        pytest.param(lambda batch: batch.slice(2, 2), [], id="slice_nothing"),
        pytest.param(lambda batch: batch.select_indices([2, 0, 0]), [[2, 2, 2], [0, 0], [0, 0]], id="select_indices"),
        pytest.param(lambda batch: batch.select_indices([]), [], id="select_nothing"),
        pytest.param(lambda batch: twice(batch).slice(2, 4), [[2, 2, 2], [0, 0]], id="from_batches"),
        pytest.param(lambda batch: batch.to("cpu"), [[0, 0], [], [2, 2, 2]], id="to"),
    ],
)
def test_columns_that_shared_offsets_can_still_be_added(use: Callable[[Batch], Batch], expected: list[Any]) -> None:
    first = jagged(2, 0, 3)
    result = use(BatchedDataDict(a=first, b=first * 10))
    assert rows_of(result["a"]) == expected
    assert rows_of(result["a"] + result["b"]) == [[11 * x for x in row] for row in expected]


def test_rows_with_holes_between_them_are_those_of_others() -> None:
    holes = torch.nested.narrow(
        torch.arange(10).reshape(2, 5), 1, torch.arange(2), torch.tensor([2, 3]), layout=torch.jagged
    )
    batch: Batch = BatchedDataDict(a=holes)
    assert rows_of(batch.slice(0, 2)["a"]) == [[0, 1], [6, 7, 8]]
    assert rows_of(twice(batch.select_indices([1, 0]))["a"]) == [[6, 7, 8], [0, 1]] * 2


RAGGED_IN_DIM_2 = torch.nested.nested_tensor([torch.zeros(4, 2), torch.zeros(4, 3)], layout=torch.jagged)
REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "ragged in dim 2": (lambda: Batch(a=RAGGED_IN_DIM_2).slice(0, 1), ValueError, "'a': ragged in dim 2"),
    "truncated": (lambda: Batch(a=jagged(2, 3)).truncate_tensors(1, 1), TypeError, "'a'"),
    "slice beyond the rows": (lambda: Batch(a=jagged(2, 3)).slice(1, 3), AssertionError, "'a'"),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()

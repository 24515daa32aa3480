"""BatchedDataDict.from_batches: rows of several batches in one, padded to the widest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dataplane_client.batched_data_dict import BatchedDataDict, SlicedDataDict
from dataplane_client.packed_tensor import PackedTensor

join = BatchedDataDict[Any].from_batches


def test_keys_come_out_sorted() -> None:
    assert list(join([{"b": [1], "a": [2]}, {"a": [3], "b": [4]}])) == ["a", "b"]


@pytest.mark.parametrize("cls", [BatchedDataDict, SlicedDataDict])
def test_the_class_it_is_called_on_is_the_class_of_the_result(cls: type[BatchedDataDict[Any]]) -> None:
    assert type(cls.from_batches([{"a": [1]}])) is cls


def test_lists_are_concatenated() -> None:
    assert join([{"a": [1, 2]}, {"a": [{"x": 3}]}])["a"] == [1, 2, {"x": 3}]


def test_object_arrays_are_concatenated() -> None:
    first, second = np.empty(2, dtype=object), np.empty(1, dtype=object)
    first[0], first[1], second[0] = [1, 2], "b", None
    joined = join([{"a": first}, {"a": second}])["a"]
    assert (joined.dtype, joined.tolist()) == (np.dtype(object), [[1, 2], "b", None])


def test_packed_tensors_keep_their_rows() -> None:
    joined = join([{"a": PackedTensor([torch.zeros(2), None], 0)}, {"a": PackedTensor(torch.ones(1), 0)}])["a"]
    assert len(joined) == 3
    assert joined.as_tensor().tolist() == [0, 0, 1]


def test_flat_tensors_are_concatenated() -> None:
    assert join([{"a": torch.tensor([1, 2])}, {"a": torch.tensor([3])}])["a"].tolist() == [1, 2, 3]


def test_rows_are_padded_with_zero_to_the_widest() -> None:
    joined = join([{"a": torch.tensor([[1], [2]])}, {"a": torch.tensor([[3, 4, 5]])}])["a"]
    assert joined.tolist() == [[1, 0, 0], [2, 0, 0], [3, 4, 5]]


def test_rows_are_padded_with_the_value_of_their_column() -> None:
    batches = [
        {"ids": torch.tensor([[1]]), "mask": torch.tensor([[1]])},
        {k: torch.tensor([[1, 1]]) for k in ("ids", "mask")},
    ]
    joined = join(batches, pad_value_dict={"ids": 151643})
    assert (joined["ids"].tolist(), joined["mask"].tolist()) == ([[1, 151643], [1, 1]], [[1, 0], [1, 1]])


@pytest.mark.parametrize("trailing", [(4,), (4, 2)], ids=["3d", "4d"])
def test_deeper_tensors_are_padded_on_dim_1_and_keep_their_trailing_dims(trailing: tuple[int, ...]) -> None:
    joined = join([{"a": torch.ones(2, 3, *trailing)}, {"a": torch.ones(1, 5, *trailing)}], pad_value_dict={"a": 7})[
        "a"
    ]
    assert joined.shape == (3, 5, *trailing)
    assert (joined[:2, 3:] == 7).all()
    assert (joined[:2, :3] == 1).all()


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str
)
def test_padding_keeps_the_dtype(dtype: torch.dtype) -> None:
    joined = join([{"a": torch.ones(1, 1).to(dtype)}, {"a": torch.ones(1, 3).to(dtype)}])["a"]
    assert joined.dtype == dtype
    assert joined.to(torch.float32).tolist() == [[1, 0, 0], [1, 1, 1]]


def test_no_batches_make_an_empty_one() -> None:
    assert join([]) == {}


def test_a_column_missing_from_a_batch_with_rows_is_named() -> None:
    with pytest.raises(KeyError, match=r"'b' is missing from non-empty batches \[1\]"):
        join([{"a": [1], "b": [1]}, {"a": [2]}])


def test_a_column_that_only_a_later_batch_has_is_named() -> None:
    with pytest.raises(KeyError, match=r"'b' is missing from non-empty batches \[0\]"):
        join([{"a": [1]}, {"a": [2], "b": [1]}])


@pytest.mark.parametrize("empty", [{}, {"a": torch.zeros(0, 9)}], ids=["no_columns", "no_rows"])
def test_a_batch_without_rows_may_lack_columns_and_sets_no_width(empty: dict[str, Any]) -> None:
    joined = join([empty, {"a": torch.ones(1, 2), "b": [3]}])
    assert (joined["a"].tolist(), joined["b"]) == ([[1, 1]], [3])


def test_batches_that_all_lack_rows_keep_the_columns() -> None:
    joined = join([{"a": torch.zeros(0, 9), "b": []}, {"a": torch.zeros(0, 4), "b": []}])
    assert (joined["a"].shape, joined["b"]) == ((0, 9), [])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("text", "text", id="strings"),
        pytest.param(3, 4, id="numbers"),
        pytest.param(torch.tensor(1), torch.tensor(2), id="0d_tensors"),
        pytest.param([1], torch.tensor([2]), id="a_list_and_a_tensor"),
    ],
)
def test_columns_that_cannot_be_joined_are_named(first: object, second: object) -> None:
    with pytest.raises(NotImplementedError, match="column 'odd' cannot be joined"):
        join([{"n": [1], "odd": first}, {"n": [1], "odd": second}])


@pytest.mark.parametrize(
    "other",
    [lambda: torch.zeros(1), lambda: torch.zeros(1, 2, 3), lambda: torch.zeros(1, 2)],
    ids=["1d_and_3d", "trailing", "2d_and_3d"],
)
def test_tensors_that_differ_in_more_than_rows_and_width_are_named(other: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="tensors of column 'a' differ in more than rows and width"):
        join([{"a": torch.zeros(2, 2, 4)}, {"a": other()}])

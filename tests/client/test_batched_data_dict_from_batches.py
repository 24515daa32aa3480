"""BatchedDataDict.from_batches: rows of several batches in one, padded to the widest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.tensors import jagged

from dataplane_client.batched_data_dict import BatchedDataDict, SlicedDataDict
from dataplane_client.batched_data_dict.packed_tensor import PackedTensor

join = BatchedDataDict[Any].from_batches


@pytest.mark.parametrize("cls", [BatchedDataDict, SlicedDataDict])
def test_the_class_it_is_called_on_is_the_class_of_the_result_and_keys_come_out_sorted(
    cls: type[BatchedDataDict[Any]],
) -> None:
    joined = cls.from_batches([{"b": [1], "a": [2]}, {"a": [3], "b": [4]}])
    assert (type(joined), list(joined), joined["a"]) == (cls, ["a", "b"], [2, 3])
    assert cls.from_batches([]) == {}


def test_rows_of_every_kind_are_concatenated_and_packed_ones_stay_apart() -> None:
    first, second = np.empty(2, dtype=object), np.empty(1, dtype=object)
    first[0], first[1], second[0] = [1, 2], "b", None
    one = {"l": [1, 2], "o": first, "p": PackedTensor([torch.zeros(2), None], 0), "t": torch.tensor([1, 2])}
    joined = join([one, {"l": [{"x": 3}], "o": second, "p": PackedTensor(torch.ones(1), 0), "t": torch.tensor([3])}])
    assert (joined["l"], joined["t"].tolist()) == ([1, 2, {"x": 3}], [1, 2, 3])
    assert (joined["o"].dtype, joined["o"].tolist()) == (np.dtype(object), [[1, 2], "b", None])
    assert (len(joined["p"]), joined["p"].as_tensor().tolist()) == (3, [0, 0, 1])


def test_rows_are_padded_to_the_widest_with_zero_or_the_value_of_their_column() -> None:
    wide = torch.tensor([[1, 1, 1]])
    batches = [{"ids": torch.tensor([[1], [2]]), "mask": torch.tensor([[1], [1]])}, {"ids": wide, "mask": wide}]
    joined = join(batches, pad_value_dict={"ids": 151643})
    assert joined["ids"].tolist() == [[1, 151643, 151643], [2, 151643, 151643], [1, 1, 1]]
    assert joined["mask"].tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str
)
def test_padding_keeps_the_dtype(dtype: torch.dtype) -> None:
    joined = join([{"a": torch.ones(1, 1).to(dtype)}, {"a": torch.ones(1, 3).to(dtype)}])["a"]
    assert joined.dtype == dtype
    assert joined.to(torch.float32).tolist() == [[1, 0, 0], [1, 1, 1]]


def test_pad_values_are_those_of_the_dtype_or_refused_by_the_name_of_the_column() -> None:
    batches = [{"a": torch.zeros(1, 1, dtype=torch.int64)}, {"a": torch.zeros(1, 2, dtype=torch.int64)}]
    assert join(batches, {"a": 2**53 + 1})["a"].tolist() == [[0, 2**53 + 1], [0, 0]]
    with pytest.raises(ValueError, match=r"'a'.*0\.5"):
        join(batches, {"a": 0.5})


@pytest.mark.parametrize("empty", [{}, {"a": torch.zeros(0, 9)}], ids=["no_columns", "no_rows"])
def test_a_batch_without_rows_may_lack_columns_and_sets_no_width(empty: dict[str, Any]) -> None:
    joined = join(iter([empty, {"a": torch.ones(1, 2), "b": [3]}]))
    assert (joined["a"].tolist(), joined["b"]) == ([[1, 1]], [3])


def nested(values: torch.Tensor) -> torch.Tensor:
    return jagged(values, [len(values)])


ROWS = torch.zeros(2, 2, 4)
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "strings": ({"n": [1], "a": "text"}, {"n": [1], "a": "text"}, NotImplementedError, "'a'"),
    "0-d tensors": ({"n": [1], "a": torch.tensor(1)}, {"n": [1], "a": torch.tensor(2)}, NotImplementedError, "'a'"),
    "a list and a tensor": ({"n": [1], "a": [1]}, {"n": [1], "a": torch.tensor([2])}, NotImplementedError, "'a'"),
    "1-d and 3-d": ({"a": ROWS}, {"a": torch.zeros(1)}, ValueError, "'a'"),
    "arrays": ({"a": np.zeros((2, 3))}, {"a": np.zeros((1, 2))}, ValueError, "'a'"),
    "nested rows": ({"a": nested(torch.zeros(2, 3))}, {"a": nested(torch.zeros(2, 4))}, ValueError, "'a'"),
    "trailing dims": ({"a": ROWS}, {"a": torch.zeros(1, 2, 3)}, ValueError, "'a'"),
    "absent from a later": ({"a": [1], "b": [1]}, {"a": [2]}, KeyError, r"'b' .*\[1\]"),
    "only in a later": ({"a": [1]}, {"a": [2], "b": [1]}, KeyError, r"'b' .*\[0\]"),
}


@pytest.mark.parametrize(("first", "second", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_columns_that_cannot_be_joined_are_named(
    first: dict[str, Any], second: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        join([first, second])

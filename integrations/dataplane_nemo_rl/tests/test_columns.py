"""Columns of another kind or type than their field: converted if no value changes, and otherwise refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from torch import tensor

from dataplane_client.errors import InvalidArgumentError
from dataplane_nemo_rl import DataPlaneAdapter


def row(*numbers: float, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """A jagged column of one row."""
    return torch.nested.nested_tensor([tensor(numbers, dtype=dtype)], layout=torch.jagged)


def objects(*rows: object) -> NonTensorStack:
    return NonTensorStack(*rows)


def array(*rows: object) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    return np.fromiter(rows, object, len(rows))


NAN, INF = float("nan"), float("inf")
CONVERTED: dict[str, tuple[object, object, object]] = {
    "int32 into int64": (tensor([7]), tensor([5], dtype=torch.int32), tensor([5])),
    "small int64 into int32": (tensor([7], dtype=torch.int32), tensor([5]), tensor([5], dtype=torch.int32)),
    "bool into int64": (tensor([7]), tensor([True]), tensor([1])),
    "int64 into bool": (tensor([True]), tensor([0]), tensor([False])),
    "int64 into float32": (tensor([0.5]), tensor([2**24]), tensor([2.0**24])),
    "float32 into float64": (tensor([0.5], dtype=torch.float64), tensor([NAN]), tensor([NAN], dtype=torch.float64)),
    "float64 into float32": (tensor([0.5]), tensor([0.1], dtype=torch.float64), tensor([0.1])),
    "infinity into bfloat16": (tensor([0.5], dtype=torch.bfloat16), tensor([INF]), tensor([INF], dtype=torch.bfloat16)),
    "whole float32 into int64": (tensor([7]), tensor([3.0]), tensor([3])),
    "jagged int32 into jagged int64": (row(7, 8), row(1, 2, 3, dtype=torch.int32), tensor([[1, 2, 3]])),
    "a dense row into a jagged field": (row(7, 8), tensor([[1, 2]], dtype=torch.int32), tensor([[1, 2]])),
    "an empty row of another type": (row(7, 8), row(dtype=torch.float32), torch.zeros(1, 0, dtype=torch.int64)),
    "an empty row of another shape": (
        torch.zeros(1, 4, 3, dtype=torch.uint8),
        torch.zeros(1, 0),
        torch.zeros(1, 0, 3, dtype=torch.uint8),
    ),
    "a token after an empty row of another type": (row(dtype=torch.float32), row(7), tensor([[7.0]])),
    "a number in an array into float32": (tensor([0.5]), array(2.5), tensor([2.5])),
    "a number in a stack into int64": (tensor([7]), objects(5), tensor([5])),
    "tensors in an array into a jagged field": (row(7, 8), array(tensor([1])), tensor([[1]])),
    "a tensor into objects": (objects({"a": 1}), tensor([[1, 2]]), objects(tensor([1, 2]))),
    "an empty tensor into objects": (objects(None), torch.zeros(1, 0), objects(torch.zeros(0))),
    "other objects into objects": (objects(None), array("text"), objects("text")),
}
REFUSED: dict[str, tuple[object, object]] = {
    "a large int64 into int32": (tensor([7], dtype=torch.int32), tensor([2**40])),
    "a large int64 into float32": (tensor([0.5]), tensor([2**24 + 1])),
    "a fraction into int64": (tensor([7]), tensor([0.5])),
    "a large fraction into int64": (tensor([7]), tensor([4194304.5])),
    "NaN into int64": (tensor([7]), tensor([NAN])),
    "a float32 into bfloat16": (tensor([0.5], dtype=torch.bfloat16), tensor([0.1])),
    "a large float64 into float32": (tensor([0.5]), tensor([1e300], dtype=torch.float64)),
    "a float8 that int8 does not hold": (tensor([7], dtype=torch.int8), tensor([0.5]).to(torch.float8_e4m3fn)),
    "None into float32": (tensor([0.5]), array(None)),
    "text into int64": (tensor([7]), objects("5")),
    "tensors of two types into int64": (row(7), array([1, 0.5])),
    "an image after an empty row": (torch.zeros(1, 0), torch.ones(1, 4, 3)),
    "a matrix a row into a number a row": (tensor([7]), torch.ones(1, 2, 2, dtype=torch.int64)),
}


def put(adapter: DataPlaneAdapter, sample_id: str, column: object, **more: torch.Tensor) -> None:
    adapter.put_samples([sample_id], "calls", TensorDict({"x": column, **more}, batch_size=[1]))


@pytest.mark.parametrize("case", CONVERTED)
def test_a_column_is_converted_to_what_its_field_holds(adapter: DataPlaneAdapter, case: str) -> None:
    first, second, expected = CONVERTED[case]
    put(adapter, "first", first)
    put(adapter, "second", second, new=torch.zeros(1))
    read = adapter.get_samples(["second"], "calls", ["x"]).get("x")
    if isinstance(expected, NonTensorStack):
        assert [str(value) for value in read.tolist()] == [str(value) for value in expected.tolist()]
    else:
        torch.testing.assert_close(read, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("case", REFUSED)
def test_a_column_whose_values_would_change_is_refused_with_both_types(adapter: DataPlaneAdapter, case: str) -> None:
    first, second = REFUSED[case]
    put(adapter, "first", first)
    with pytest.raises(InvalidArgumentError, match=r"field 'x': the put has .* but the field holds"):
        put(adapter, "second", second)
    assert adapter.list_sample_ids("calls") == ["first"]


def test_a_put_that_is_refused_for_something_else_is_not_tried_again(adapter: DataPlaneAdapter) -> None:
    with pytest.raises(ValueError, match="duplicate sample id"):
        adapter.put_samples(["a", "a"], "calls", TensorDict({"x": torch.zeros(2)}, batch_size=[2]))
    assert adapter.list_sample_ids("calls") == []

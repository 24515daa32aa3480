"""From the wire's TensorDict to the trainer's batch: one test per promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from tests.tensors import objects
from torch.nested import as_nested_tensor, narrow, nested_tensor, nested_tensor_from_jagged

from dataplane_client._values.columns_layout import Layout
from dataplane_client.codec import materialize, pack_jagged_fields


def ragged(*rows: Sequence[Any], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


STRIDED = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")


def test_jagged_layout_passes_nested_leaves_through() -> None:
    nested = ragged([1], [2, 3])
    batch = materialize(TensorDict({"x": nested, "y": torch.ones(2, 1)}, [2]), layout="jagged", pad_to_seqlen=4)
    assert batch["x"] is nested
    assert batch["y"].shape == (2, 4)


def test_pad_to_seqlen_fills_narrower_fields_and_leaves_wider_ones() -> None:
    fields = {"a": ragged([1], [2, 3]), "b": torch.ones(2, 3), "c": torch.ones(2, 5), "d": torch.ones(2)}
    td = TensorDict({**fields, "e": torch.ones(2, 2, 5)}, [2])
    batch = materialize(td, pad_value_dict={"a": 7, "b": 8}, pad_to_seqlen=4)
    assert batch["a"].tolist() == [[1, 7, 7, 7], [2, 3, 7, 7]]
    assert batch["b"].tolist() == [[1, 1, 1, 8], [1, 1, 1, 8]]
    assert [tuple(batch[name].shape) for name in "cde"] == [(2, 5), (2,), (2, 4, 5)]
    assert batch["c"] is td["c"]
    assert materialize(td, pad_to_seqlen=1)["a"].shape == (2, 2)


def test_object_stack_becomes_an_object_array_with_lists_and_dicts_whole() -> None:
    values = [[1, 2], {"a": 1}, None]
    packed = pack_jagged_fields({"p": objects(*values)}, lengths=torch.tensor([1, 1, 1]))["p"]
    batch = materialize(TensorDict({"o": NonTensorStack(*map(NonTensorData, values)), "p": packed}, [3]))
    assert (batch["o"].shape, batch["o"].dtype) == ((3,), object)
    assert batch["o"].tolist() == batch["p"].tolist() == values


def test_stripped_item_of_a_stack_is_none() -> None:
    stack = NonTensorStack(NonTensorData("a"), NonTensorData("b"))
    stack.tensordicts[0] = TensorDict({}, [])
    assert materialize(TensorDict({"o": stack}, [2]))["o"].tolist() == [None, "b"]


@pytest.mark.parametrize(
    ("leaf", "rows", "expected"),
    [
        (NonTensorData("hi"), [3], ["hi", "hi", "hi"]),
        (NonTensorData("hi"), [], ["hi"]),
        (NonTensorData(objects("a", "b")), [], ["a", "b"]),
    ],
    ids=["one value for every row", "a scalar without rows", "an array without rows"],
)
def test_an_object_leaf_without_rows_is_of_every_row_or_says_its_own(
    leaf: object, rows: list[int], expected: list[object]
) -> None:
    assert materialize(TensorDict({"o": leaf}, rows))["o"].tolist() == expected


WITH_HOLES = nested_tensor_from_jagged(
    torch.arange(10), torch.tensor([0, 3, 6, 10]), lengths=torch.tensor([1, 3, 2]), min_seqlen=1, max_seqlen=3
)
ODD = {
    "large integers": (ragged([2**53 + 1], [2**62 + 1, 3]), [[2**53 + 1, 0], [2**62 + 1, 3]]),
    "holes between rows": (WITH_HOLES, [[0, 0, 0], [3, 4, 5], [6, 7, 0]]),
    "narrowed": (
        narrow(torch.arange(12).reshape(2, 6), 1, torch.tensor([1, 3]), torch.tensor([2, 3]), layout=torch.jagged),
        [[1, 2, 0], [9, 10, 11]],
    ),
    "no recorded longest row": (
        nested_tensor_from_jagged(torch.arange(5), torch.tensor([0, 2, 5])),
        [[0, 1, 0], [2, 3, 4]],
    ),
    "strided": ([torch.tensor([[1, 2]]), torch.tensor([[3, 4], [5, 6]])], [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]),
    "non-contiguous": (
        nested_tensor_from_jagged(torch.arange(6).reshape(2, 3).T, torch.tensor([0, 1, 3]), None, 1, 2),
        [[[0, 3], [0, 0]], [[1, 4], [2, 5]]],
    ),
    "pending conjugation": (
        nested_tensor_from_jagged(torch.tensor([1 + 2j, 3 - 1j, 5j]).conj(), torch.tensor([0, 1, 3]), None, 1, 2),
        [[1 - 2j, 0], [3 + 1j, -5j]],
    ),
}


@STRIDED
@pytest.mark.parametrize(("nested", "expected"), ODD.values(), ids=ODD)
def test_nested_tensors_of_every_make_are_padded(
    nested: torch.Tensor | list[torch.Tensor], expected: list[object]
) -> None:
    leaf = nested_tensor(nested) if isinstance(nested, list) else nested
    assert materialize(TensorDict({"x": leaf}, [len(expected)]))["x"].tolist() == expected


@pytest.mark.parametrize("layout", ["padded", "auto"])
@pytest.mark.parametrize(
    "shapes", [((1, 2), (2, 2)), ((2, 2), (2, 2)), ((2, 3), (2, 5))], ids=["ragged", "even", "later"]
)
def test_gradients_flow_through(layout: Layout, shapes: list[tuple[int, int]]) -> None:
    rows = [torch.ones(shape, requires_grad=True) for shape in shapes]
    dense = torch.ones(2, 1, requires_grad=True)
    td = TensorDict({"x": as_nested_tensor(rows, layout=torch.jagged), "d": dense}, [2])
    batch = materialize(td, layout, {"x": 7}, pad_to_seqlen=3)
    whole = batch["x"].values() if batch["x"].is_nested else batch["x"]
    (whole.sum() + (batch["d"] * 2).sum()).backward()
    assert [row.grad is not None and row.grad.tolist() for row in rows] == [[[1] * n] * m for m, n in shapes]
    assert dense.grad is not None
    assert dense.grad.tolist() == [[2], [2]]


RAGGED_LATER = {
    "transposed": (ragged([[1, 2]], [[3, 4], [5, 6]]).transpose(1, 2), (2, 2, 2)),
    "ragged in dim 2": (as_nested_tensor([torch.ones(2, 3), torch.ones(2, 5)], layout=torch.jagged), (2, 2, 5)),
    "ragged in dims 1 and 2": ([torch.ones(1, 2), torch.ones(3, 1)], (2, 3, 2)),
    "ragged in dims 1 and 3": ([torch.ones(1, 2, 1), torch.ones(3, 2, 4)], (2, 3, 2, 4)),
}


@STRIDED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize(("rows", "shape"), RAGGED_LATER.values(), ids=RAGGED_LATER)
def test_rows_ragged_in_a_later_dim_are_padded_as_torch_pads_them(
    rows: torch.Tensor | list[torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    parts = [row.float() for row in (rows if isinstance(rows, list) else rows.unbind())]
    nested = nested_tensor([row.to(dtype) for row in parts])
    padded = materialize(TensorDict({"x": nested}, [2]), pad_value_dict={"x": 7})["x"]
    assert (padded.dtype, padded.shape) == (dtype, shape)
    assert torch.equal(padded.float(), torch.nested.to_padded_tensor(nested_tensor(parts), 7.0))
    wider = materialize(TensorDict({"x": nested}, [2]), pad_to_seqlen=9)["x"]
    assert wider.shape == (2, 9, *shape[2:])


@STRIDED
@pytest.mark.parametrize(
    ("nested", "shape"),
    [
        (ragged([1, 2], [3, 4]), (2, 2)),
        (ragged([], []), (2, 0)),
        (ragged([1], [2, 3]), None),
        (ragged([[1, 2]], [[3, 4]]).transpose(1, 2), (2, 2, 1)),
        (as_nested_tensor([torch.ones(2, 3), torch.ones(2, 5)], layout=torch.jagged), None),
        ([torch.ones(2, 3), torch.ones(2, 3)], (2, 2, 3)),
    ],
    ids=["even", "empty rows", "ragged", "transposed", "ragged in dim 2", "strided"],
)
def test_auto_layout_is_dense_where_all_rows_have_one_shape(
    nested: torch.Tensor | list[torch.Tensor], shape: tuple[int, ...] | None
) -> None:
    nested = nested_tensor(nested) if isinstance(nested, list) else nested
    got = materialize(TensorDict({"x": nested}, [2]), "auto")["x"]
    if shape is None:
        assert got is nested
        return
    assert (got.is_nested, got.shape) == (False, shape)
    assert torch.equal(got, torch.stack(nested.unbind()))


@pytest.mark.parametrize("layout", ["padded", "auto"])
def test_a_ragged_field_without_rows_becomes_dense(layout: Layout) -> None:
    later = as_nested_tensor([torch.ones(2, 3), torch.ones(2, 5)], layout=torch.jagged)
    got = materialize(TensorDict({"x": later, "y": ragged([1], [2, 3])}, [2])[:0], layout, pad_to_seqlen=4)
    assert (got["x"].shape, got["y"].shape) == ((0, 4, 0), (0, 4))


def offsets(*bounds: int) -> torch.Tensor:
    return nested_tensor_from_jagged(torch.arange(5), torch.tensor(bounds), min_seqlen=0, max_seqlen=5)


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a layout": (lambda: materialize(TensorDict({}, [0]), layout="ragged"), ValueError, "'ragged'"),  # type: ignore[arg-type]
    "objects of other rows": (
        lambda: materialize(TensorDict({"o": objects("a", "b", "c")}, [3])[1:]),
        ValueError,
        r"'o'.*\(3,\).*2 rows",
    ),
    "a nested TensorDict": (
        lambda: materialize(TensorDict({"inner": TensorDict({"x": torch.ones(2)}, [2])}, [2])),
        TypeError,
        "'inner': unexpected leaf type TensorDict",
    ),
    "0-d rows": (
        lambda: materialize(TensorDict({"x": nested_tensor([torch.tensor(1.0), torch.tensor(2.0)])}, [2])),
        ValueError,
        "'x', row",
    ),
    "past the end": (lambda: materialize(TensorDict({"x": offsets(0, 2, 9)}, [2])), ValueError, "'x', row 1"),
    "decreasing": (lambda: materialize(TensorDict({"x": offsets(0, 3, 1)}, [2])), ValueError, "'x', row 1"),
    "negative": (lambda: materialize(TensorDict({"x": offsets(-1, 1, 2)}, [2])), ValueError, "'x', row 0"),
}


@STRIDED
@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_padded_is_refused_by_field_and_row(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()

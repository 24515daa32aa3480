"""PackedTensor: rows of different sizes, or none, that become one tensor on demand."""

from __future__ import annotations

import pytest
import torch

from dataplane_client.packed_tensor import PackedTensor


def shaped(*patches: int | None) -> PackedTensor:
    """Row i holds patches[i] patches of 2 values each, all equal to i."""
    return PackedTensor([None if n is None else torch.full((n, 2), i) for i, n in enumerate(patches)], dim_to_pack=0)


def tensor_of(packed: PackedTensor) -> torch.Tensor:
    tensor = packed.as_tensor()
    assert tensor is not None
    return tensor


def test_rows_are_concatenated_along_the_dimension_to_pack() -> None:
    packed = PackedTensor([torch.zeros(2, 1), torch.ones(2, 3)], dim_to_pack=1)
    assert tensor_of(packed).tolist() == [[0, 1, 1, 1], [0, 1, 1, 1]]


def test_a_bare_tensor_is_one_row() -> None:
    packed = PackedTensor(torch.zeros(3, 2), dim_to_pack=0)
    assert len(packed) == 1
    assert tensor_of(packed).shape == (3, 2)


def test_rows_without_a_tensor_count_as_rows_and_add_nothing() -> None:
    packed = shaped(1, None, 2)
    assert len(packed) == 3
    assert tensor_of(packed)[:, 0].tolist() == [0, 2, 2]


def test_rows_that_all_lack_a_tensor_have_no_tensor() -> None:
    assert shaped(None, None).as_tensor() is None


def test_as_tensor_returns_a_copy() -> None:
    row = torch.zeros(2)
    tensor_of(PackedTensor([row], 0)).fill_(7)
    assert row.tolist() == [0, 0]


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(AssertionError, match="non-empty list"):
        PackedTensor([], 0)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        pytest.param("rows", "wraps a tensor or a list of tensors, got str", id="not_a_list"),
        pytest.param([torch.zeros(1), 3], "row 1 of a PackedTensor must be a tensor or None, got int", id="a_row"),
    ],
)
def test_what_is_not_a_tensor_is_refused_by_name(tensors: list[torch.Tensor | None], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        PackedTensor(tensors, 0)


@pytest.mark.parametrize("indices", [[2, 0, 2], torch.tensor([2, 0, 2])], ids=["list", "tensor"])
def test_slice_takes_the_rows_named_in_that_order(indices: list[int] | torch.Tensor) -> None:
    assert tensor_of(shaped(1, 2, 1).slice(indices))[:, 0].tolist() == [2, 0, 2]


def test_slice_of_no_rows_has_length_zero_and_no_tensor() -> None:
    empty = shaped(1, 2).slice([])
    assert len(empty) == 0
    assert empty.as_tensor() is None


def test_slice_beyond_the_last_row_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        shaped(1, 2).slice([2])


def test_concat_keeps_the_rows_apart() -> None:
    joined = PackedTensor.concat([shaped(1, None), shaped(2)])
    assert [None if row is None else row.shape[0] for row in joined.tensors] == [1, None, 2]


def test_flattened_concat_makes_one_row_of_each_and_the_same_tensor() -> None:
    parts = [shaped(1, 2), shaped(None), shaped(3)]
    joined = PackedTensor.flattened_concat(parts)
    assert [None if row is None else row.shape[0] for row in joined.tensors] == [3, None, 3]
    assert torch.equal(tensor_of(joined), tensor_of(PackedTensor.concat(parts)))


@pytest.mark.parametrize("join", [PackedTensor.concat, PackedTensor.flattened_concat])
def test_joining_along_different_dimensions_is_refused(join: object) -> None:
    assert callable(join)
    with pytest.raises(AssertionError, match=r"share one dim_to_pack, found \[0, 1\]"):
        join([PackedTensor([torch.zeros(1, 1)], 0), PackedTensor([torch.zeros(1, 1)], 1)])


def test_empty_like_has_as_many_rows_and_none_of_the_tensors() -> None:
    empty = PackedTensor.empty_like(PackedTensor([torch.zeros(1, 1), None], 1))
    assert (empty.tensors, empty.dim_to_pack) == ([None, None], 1)


def test_to_moves_the_rows_in_place_and_returns_the_same_object() -> None:
    packed = shaped(1, None)
    assert packed.to("meta") is packed
    row = packed.tensors[0]
    assert row is not None
    assert row.device.type == "meta"


def test_as_tensor_on_another_device_leaves_the_rows_where_they_are() -> None:
    packed = shaped(1, 2)
    moved = packed.as_tensor(device="meta")
    assert moved is not None
    assert moved.device.type == "meta"
    assert tensor_of(packed).device.type == "cpu"


def test_repr_tells_the_shapes_of_the_rows() -> None:
    assert repr(shaped(3, None)) == "PackedTensor(rows=[(3, 2), None], dim_to_pack=0)"

"""PackedTensor: rows of different sizes, or none, that become one tensor on demand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dataplane_client.batched_data_dict.packed_tensor import PackedTensor


def shaped(*patches: int | None) -> PackedTensor:
    """Row i holds patches[i] patches of 2 values each, all equal to i."""
    return PackedTensor([None if n is None else torch.full((n, 2), i) for i, n in enumerate(patches)], dim_to_pack=0)


def tensor_of(packed: PackedTensor) -> torch.Tensor:
    tensor = packed.as_tensor()
    assert tensor is not None
    return tensor


def test_rows_are_concatenated_along_the_dimension_to_pack_and_a_bare_tensor_is_one_row() -> None:
    packed = PackedTensor([torch.zeros(2, 1), torch.ones(2, 3)], dim_to_pack=1)
    assert tensor_of(packed).tolist() == [[0, 1, 1, 1], [0, 1, 1, 1]]
    bare = PackedTensor(torch.zeros(3, 2), dim_to_pack=0)
    assert (len(bare), tensor_of(bare).shape) == (1, (3, 2))


def test_rows_without_a_tensor_count_as_rows_and_add_nothing() -> None:
    packed, empty = shaped(1, None, 2), shaped(1, 2).slice([])
    assert (len(packed), tensor_of(packed)[:, 0].tolist()) == (3, [0, 2, 2])
    assert shaped(None, None).as_tensor() is None
    assert (len(empty), empty.as_tensor()) == (0, None)


@pytest.mark.parametrize("indices", [[2, 0, 2], torch.tensor([2, 0, 2])], ids=["list", "tensor"])
def test_slice_takes_the_rows_named_in_that_order(indices: list[int] | torch.Tensor) -> None:
    assert tensor_of(shaped(1, 2, 1).slice(indices))[:, 0].tolist() == [2, 0, 2]


def test_concat_keeps_rows_apart_and_flattened_concat_makes_one_of_each_with_the_same_tensor() -> None:
    parts = [shaped(1, 2), shaped(None), shaped(3)]
    joined, apart = PackedTensor.flattened_concat(parts), PackedTensor.concat(parts)
    assert [None if row is None else row.shape[0] for row in joined.tensors] == [3, None, 3]
    assert [None if row is None else row.shape[0] for row in apart.tensors] == [1, 2, None, 3]
    assert torch.equal(tensor_of(joined), tensor_of(apart))


def test_empty_like_has_as_many_rows_and_none_of_the_tensors() -> None:
    empty = PackedTensor.empty_like(PackedTensor([torch.zeros(1, 1), None], 1))
    assert (empty.tensors, empty.dim_to_pack) == ([None, None], 1)


def test_to_moves_the_rows_in_place_and_as_tensor_leaves_them_where_they_are() -> None:
    packed = shaped(1, 2)
    moved = packed.as_tensor(device="meta")
    assert (moved is not None and moved.device.type, tensor_of(packed).device.type) == ("meta", "cpu")
    assert packed.to("meta") is packed
    assert [row is not None and row.device.type for row in packed.tensors] == ["meta", "meta"]


DIFFERENT = [PackedTensor([torch.zeros(1, 1)], 0), PackedTensor([torch.zeros(1, 1)], 1)]
NO_ROW = "row 1 .* int"
NO_LIST = "str"
ONE_DIM = r"dim_to_pack.* \[0, 1\]"
REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no rows": (lambda: PackedTensor([], 0), AssertionError, "non-empty list"),
    "a str": (lambda: PackedTensor("rows", 0), TypeError, NO_LIST),  # type: ignore[arg-type]
    "an int": (lambda: PackedTensor([torch.zeros(1), 3], 0), TypeError, NO_ROW),  # type: ignore[list-item]
    "slice beyond": (lambda: shaped(1, 2).slice([2]), IndexError, "index"),
    "slice by a mask": (lambda: shaped(1, 2).slice(torch.tensor([False, True])), TypeError, "integers"),
    "concat": (lambda: PackedTensor.concat(DIFFERENT), AssertionError, ONE_DIM),
    "flattened_concat": (lambda: PackedTensor.flattened_concat(DIFFERENT), AssertionError, ONE_DIM),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()

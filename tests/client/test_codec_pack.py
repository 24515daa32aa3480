"""Stripping padding before a put: one test per promise of the packing functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tensordict import NonTensorData, TensorDict
from tests.client.jagged_slices import needs_jagged_slices
from torch.nested import as_nested_tensor, nested_tensor_from_jagged

from dataplane_client.codec import (
    maybe_pack_jagged,
    pack_jagged_fields,
    pack_per_token_field,
    response_from_nested,
    stack_or_nest,
    to_nested_by_length,
    unwrap_wire_stripped_payload,
)

Pack = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def rows_of(nested: torch.Tensor) -> list[Any]:
    return [row.tolist() for row in nested.unbind()]


def objects(*values: object) -> npt.NDArray[np.object_]:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


class TestToNestedByLength:
    @pytest.mark.parametrize(
        ("padded", "lengths", "rows"),
        [
            (torch.arange(12).reshape(3, 4), [2, 4, 1], [[0, 1], [4, 5, 6, 7], [8]]),
            (torch.arange(8).reshape(2, 2, 2), [1, 2], [[[0, 1]], [[4, 5], [6, 7]]]),
            (torch.arange(12).reshape(4, 3).T, [2, 4, 1], [[0, 3], [1, 4, 7, 10], [2]]),
            (torch.ones(2, 3), [0, 2], [[], [1, 1]]),
            (torch.ones(2, 3), [0, 0], [[], []]),
            (torch.ones(2, 3), [9, 1], [[1, 1, 1], [1]]),
        ],
        ids=["ragged", "trailing dims", "non-contiguous", "an empty row", "empty rows", "longer than the width"],
    )
    def test_row_is_cut_to_its_length(self, padded: torch.Tensor, lengths: list[int], rows: list[Any]) -> None:
        nested = to_nested_by_length(padded, torch.tensor(lengths))
        assert nested.layout is torch.jagged
        assert rows_of(nested) == rows

    @pytest.mark.parametrize(
        ("padded", "lengths", "error", "message"),
        [
            (torch.ones(3, 3), torch.tensor([1, -2, -1]), ValueError, "row 1 has -2"),
            (torch.ones(()), torch.tensor([1, 1, 1]), ValueError, r"\(N, S, \.\.\.\).*\(\)"),
            (torch.ones(3), torch.tensor([1, 1, 1]), ValueError, r"\(N, S, \.\.\.\).*\(3,\)"),
            (torch.ones(3, 3), torch.tensor([1, 1]), ValueError, "lengths shape"),
            (torch.ones(3, 3), torch.tensor([[1], [1], [1]]), ValueError, "lengths shape"),
            (torch.ones(3, 3), torch.tensor(1), ValueError, "lengths shape"),
            (torch.ones(3, 3), torch.ones(3), TypeError, "integers"),
            (torch.ones(3, 3), torch.ones(3, dtype=torch.bool), TypeError, "integers"),
            (as_nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged), [2, 1], ValueError, "nested"),
        ],
        ids=["negative", "0-d", "1-d", "few lengths", "2-d lengths", "one length", "floats", "bools", "nested"],
    )
    def test_other_arguments_are_refused(
        self, padded: torch.Tensor, lengths: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            to_nested_by_length(padded, torch.as_tensor(lengths))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32, torch.bool, torch.int8, torch.uint8, torch.float16])
    def test_dtype_stays(self, dtype: torch.dtype) -> None:
        assert to_nested_by_length(torch.ones(2, 3).to(dtype), torch.tensor([1, 2])).dtype == dtype

    def test_no_rows_give_a_nested_tensor_without_rows(self) -> None:
        nested = to_nested_by_length(torch.ones(0, 3, 2), torch.zeros(0, dtype=torch.int64))
        assert nested.is_nested
        assert nested.size(0) == 0
        assert nested.values().shape == (0, 2)

    def test_result_is_a_copy(self) -> None:
        padded = torch.ones(2, 3)
        nested = to_nested_by_length(padded, torch.tensor([3, 3]))
        padded.zero_()
        assert rows_of(nested) == [[1, 1, 1], [1, 1, 1]]

    def test_gradient_reaches_kept_entries_only(self) -> None:
        padded = torch.ones(2, 3, requires_grad=True)
        (grad,) = torch.autograd.grad(to_nested_by_length(padded, torch.tensor([1, 3])).values().sum(), padded)
        assert grad.tolist() == [[1, 0, 0], [1, 1, 1]]

    def test_torch_pads_the_result_to_its_longest_row(self) -> None:
        nested = to_nested_by_length(torch.ones(3, 5), torch.tensor([2, 3, 1]))
        assert torch.nested.to_padded_tensor(nested, 0.0).shape == (3, 3)


class TestStackOrNest:
    def test_no_rows_give_an_empty_float_tensor(self) -> None:
        assert stack_or_nest([]).shape == (0,)
        assert stack_or_nest([]).dtype == torch.float32

    def test_rows_of_one_shape_are_stacked_in_a_dtype_that_holds_all(self) -> None:
        assert torch.equal(stack_or_nest([torch.zeros(2, 3), torch.ones(2, 3)])[1], torch.ones(2, 3))
        assert stack_or_nest([torch.tensor(3), torch.tensor(4)]).tolist() == [3, 4]
        assert stack_or_nest([torch.tensor(3), torch.tensor(0.5)]).dtype == torch.float32

    def test_ragged_rows_are_nested(self) -> None:
        nested = stack_or_nest([torch.arange(2), torch.arange(3)])
        assert nested.layout is torch.jagged
        assert rows_of(nested) == [[0, 1], [0, 1, 2]]

    def test_rows_may_be_ragged_in_a_later_dim(self) -> None:
        nested = stack_or_nest([torch.zeros(2, 3), torch.ones(2, 1)])
        assert [tuple(row.shape) for row in nested.unbind()] == [(2, 3), (2, 1)]

    def test_rows_of_different_rank_are_refused(self) -> None:
        with pytest.raises(RuntimeError):
            stack_or_nest([torch.zeros(2), torch.zeros(2, 3)])


class TestUnwrapWireStrippedPayload:
    @pytest.mark.parametrize("payload", ["hi", None, [1, 2], {"a": 1}, 3.5], ids=str)
    def test_non_tensor_data_gives_its_payload(self, payload: object) -> None:
        assert unwrap_wire_stripped_payload(NonTensorData(payload)) == payload

    def test_empty_tensordict_without_batch_dims_is_none(self) -> None:
        assert unwrap_wire_stripped_payload(TensorDict({}, [])) is None

    @pytest.mark.parametrize(
        "item",
        ["hi", None, 3, TensorDict({"a": torch.ones(1)}, []), TensorDict({}, [3])],
        ids=["str", "none", "int", "with fields", "with rows"],
    )
    def test_other_items_come_back_as_they_are(self, item: object) -> None:
        assert unwrap_wire_stripped_payload(item) is item


class TestMaybePackJagged:
    def test_field_as_wide_as_the_longest_row_is_packed(self) -> None:
        nested = maybe_pack_jagged(torch.arange(6).reshape(2, 3), torch.tensor([1, 3]))
        assert rows_of(nested) == [[0], [3, 4, 5]]

    def test_trailing_dims_are_packed_along(self) -> None:
        nested = maybe_pack_jagged(torch.ones(2, 3, 5), torch.tensor([1, 3]))
        assert [tuple(row.shape) for row in nested.unbind()] == [(1, 5), (3, 5)]

    @pytest.mark.parametrize("shape", [(2,), (3, 3), (2, 4), (2, 2)], ids=["1-d", "rows", "wider", "narrower"])
    def test_field_of_another_shape_stays_rectangular(self, shape: Sequence[int]) -> None:
        val = torch.ones(shape)
        packed = maybe_pack_jagged(val, torch.tensor([1, 3]))
        assert not packed.is_nested
        assert torch.equal(packed, val)

    def test_rectangular_result_is_contiguous(self) -> None:
        assert maybe_pack_jagged(torch.ones(5, 2).T, torch.tensor([1, 3])).is_contiguous()

    def test_negative_length_is_refused_naming_the_row(self) -> None:
        with pytest.raises(ValueError, match="row 0 has -1"):
            maybe_pack_jagged(torch.ones(2, 3), torch.tensor([-1, 3]))


class TestPackPerTokenField:
    @pytest.mark.parametrize("width", [3, 4, 8])
    def test_padding_of_any_width_is_dropped(self, width: int) -> None:
        val = torch.arange(2 * width, dtype=torch.bfloat16).reshape(2, width)
        nested = pack_per_token_field(val, torch.tensor([1, 3]))
        assert nested.dtype == torch.bfloat16
        assert rows_of(nested) == [val[0, :1].tolist(), val[1, :3].tolist()]

    @pytest.mark.parametrize("shape", [(2,), (3, 3), (2, 2)], ids=["1-d", "rows", "narrower"])
    def test_field_that_cannot_hold_the_rows_stays_rectangular(self, shape: Sequence[int]) -> None:
        val = torch.ones(shape, requires_grad=True)
        packed = pack_per_token_field(val, torch.tensor([1, 3]))
        assert not packed.is_nested
        assert not packed.requires_grad
        assert torch.equal(packed, val)


@pytest.mark.parametrize("pack", [maybe_pack_jagged, pack_per_token_field])
class TestPackOneField:
    def test_without_rows_the_field_stays_rectangular(self, pack: Pack) -> None:
        assert not pack(torch.ones(0, 3), torch.zeros(0, dtype=torch.int64)).is_nested

    @pytest.mark.parametrize("width", [3, 5])
    def test_result_requires_no_grad(self, pack: Pack, width: int) -> None:
        assert not pack(torch.ones(2, width, requires_grad=True), torch.tensor([1, 3])).requires_grad

    def test_nested_field_comes_back_as_it_is(self, pack: Pack) -> None:
        nested = as_nested_tensor([torch.ones(1), torch.ones(3)], layout=torch.jagged)
        assert pack(nested, torch.tensor([1, 3])) is nested


class TestPackJaggedFields:
    @pytest.mark.parametrize(
        ("names", "nested"), [(None, ["ids"]), ({"image", "absent"}, ["image"])], ids=["by their width", "by name"]
    )
    def test_token_fields_are_packed_and_others_stay(self, names: set[str] | None, nested: list[str]) -> None:
        fields = {"ids": torch.ones(2, 3), "reward": torch.ones(2), "image": torch.ones(2, 7)}
        td = pack_jagged_fields(fields, lengths=torch.tensor([1, 3]), token_aligned_fields=names)
        assert td.batch_size == (2,)
        assert [name for name in fields if td[name].is_nested] == nested

    def test_token_fields_of_one_batch_can_be_combined(self) -> None:
        fields = {"a": torch.full((2, 3), 2.0), "b": torch.full((2, 3), 3.0)}
        td = pack_jagged_fields(fields, lengths=torch.tensor([1, 3]))
        assert rows_of(td["a"] * td["b"]) == [[6.0], [6.0, 6.0, 6.0]]

    @pytest.mark.parametrize(
        ("value", "found"),
        [({1, 2}, "set"), ("ab", "str"), (np.zeros(2, "M8[s]"), "datetime64"), (None, "NoneType")],
        ids=["set", "str", "ndarray", "none"],
    )
    def test_other_types_are_refused_naming_field_and_type(self, value: Any, found: str) -> None:
        with pytest.raises(TypeError, match=rf"'bad'.*{found}"):
            pack_jagged_fields({"ok": torch.ones(2), "bad": value}, lengths=torch.tensor([1, 1]))

    @pytest.mark.parametrize("value", [torch.ones(3), torch.tensor(1.0), objects("a")], ids=["rows", "0-d", "objects"])
    @pytest.mark.parametrize("lengths", [torch.tensor([1, 2]), None], ids=["lengths", "no lengths"])
    def test_field_with_another_number_of_rows_is_refused_naming_it(
        self, value: Any, lengths: torch.Tensor | None
    ) -> None:
        with pytest.raises(ValueError, match=r"'bad': batch dimension mismatch.*2 rows"):
            pack_jagged_fields({"ok": torch.ones(2), "bad": value}, lengths=lengths)

    def test_without_lengths_all_stays_as_it_is_and_rows_come_from_the_fields(self) -> None:
        column = objects("x", [1], None)
        td = pack_jagged_fields({"a": torch.ones(3, 2), "o": column}, lengths=None)
        assert (td.batch_size, td["a"].shape, td["o"] is column) == ((3,), (3, 2), True)

    @pytest.mark.parametrize("lengths", [None, torch.zeros(0, dtype=torch.int64)], ids=["none", "empty"])
    def test_without_fields_or_rows_there_are_none(self, lengths: torch.Tensor | None) -> None:
        assert pack_jagged_fields({}, lengths=lengths).batch_size == (0,)
        assert pack_jagged_fields({"a": torch.ones(0, 4)}, lengths=lengths)["a"].shape == (0, 4)

    def test_result_requires_no_grad(self) -> None:
        fields = {"a": torch.ones(2, 3, requires_grad=True), "b": torch.ones(2, requires_grad=True)}
        td = pack_jagged_fields(fields, lengths=torch.tensor([1, 3]))
        assert not any(leaf.requires_grad for leaf in td.values())


def nest(*rows: Sequence[float]) -> torch.Tensor:
    return as_nested_tensor([torch.tensor(row, dtype=torch.float32) for row in rows], layout=torch.jagged)


def window(offsets: list[int], lengths: list[int] | None = None) -> torch.Tensor:
    """Rows of the numbers 0 to 8, with holes between them if there are lengths."""
    sizes = lengths or [end - start for start, end in itertools.pairwise(offsets)]
    holes = None if lengths is None else torch.tensor(lengths)
    return nested_tensor_from_jagged(
        torch.arange(9.0), torch.tensor(offsets), holes, min_seqlen=min(sizes), max_seqlen=max(sizes)
    )


class TestResponseFromNested:
    @pytest.mark.parametrize(
        ("full", "mask", "rows"),
        [
            (nest([0, 1, 2, 3, 4], [10, 11, 12]), nest([1, 1], [1]), [[2, 3], [11]]),
            (nest([0, 1, 2], [10, 11], []), nest([], [1], []), [[], [10], []]),
            (nest([0, 1, 2], [10, 11, 12, 13]), window([2, 3, 5]), [[1], [11, 12]]),
            (window([0, 5, 9], [4, 3]), window([0, 3, 6], [2, 1]), [[1, 2], [6]]),
        ],
        ids=["two", "empty responses", "a mask that is a window on larger values", "holes in both"],
    )
    def test_response_is_cut_from_the_end_and_shifted_left_by_one(
        self, full: torch.Tensor, mask: torch.Tensor, rows: list[list[float]]
    ) -> None:
        assert rows_of(response_from_nested(full, mask)) == rows

    def test_result_can_be_multiplied_by_the_mask(self) -> None:
        mask = nest([1, 0], [1])
        response = response_from_nested(nest([0, 1, 2, 3, 4], [10, 11, 12]), mask)
        assert rows_of(response * mask) == [[2, 0], [11]]

    def test_response_without_a_prompt_or_of_other_rows_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"row 1: a response of 2 tokens in a sequence of 2"):
            response_from_nested(nest([0, 1, 2], [10, 11]), nest([1], [1, 1]))
        with pytest.raises(ValueError, match="2 rows, response_mask has 1"):
            response_from_nested(nest([0, 1, 2], [10, 11]), nest([1]))

    @pytest.mark.parametrize("name", ["full", "response_mask"])
    def test_rectangular_argument_is_refused(self, name: str) -> None:
        arguments = {"full": nest([0, 1, 2]), "response_mask": nest([1]), name: torch.ones(1, 2)}
        with pytest.raises(TypeError, match=f"{name} must be a nested tensor"):
            response_from_nested(**arguments)

    def test_gradient_reaches_the_shifted_entries(self) -> None:
        values = torch.arange(5.0, requires_grad=True)
        full = nested_tensor_from_jagged(values, torch.tensor([0, 3, 5]), min_seqlen=2, max_seqlen=3)
        (grad,) = torch.autograd.grad(response_from_nested(full, nest([1], [1])).values().sum(), values)
        assert grad.tolist() == [0, 1, 0, 1, 0]

    @needs_jagged_slices
    def test_a_slice_of_a_batch_is_a_mask(self) -> None:
        full = nest([0, 1, 2, 3], [5, 6, 7])
        sliced = TensorDict({"m": nest([1], [1, 1], [1])}, [3])[1:]["m"]
        assert rows_of(response_from_nested(full, sliced)) == [[1, 2], [6]]

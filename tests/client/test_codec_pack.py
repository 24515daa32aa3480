"""Stripping padding before a put: one test per promise of the packing functions."""

from __future__ import annotations

from collections.abc import Sequence
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


def rows_of(nested: torch.Tensor) -> list[Any]:
    return [row.tolist() for row in nested.unbind()]


def objects(*values: object) -> npt.NDArray[np.object_]:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


class TestToNestedByLength:
    def test_row_is_cut_to_its_length(self) -> None:
        nested = to_nested_by_length(torch.arange(12).reshape(3, 4), torch.tensor([2, 4, 1]))
        assert nested.layout is torch.jagged
        assert rows_of(nested) == [[0, 1], [4, 5, 6, 7], [8]]

    def test_trailing_dims_stay(self) -> None:
        padded = torch.arange(24).reshape(2, 3, 4)
        nested = to_nested_by_length(padded, torch.tensor([1, 3]))
        assert rows_of(nested) == [padded[0, :1].tolist(), padded[1].tolist()]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32, torch.bool, torch.int8, torch.uint8, torch.float16])
    def test_dtype_stays(self, dtype: torch.dtype) -> None:
        assert to_nested_by_length(torch.ones(2, 3).to(dtype), torch.tensor([1, 2])).dtype == dtype

    @pytest.mark.parametrize("lengths", [[0, 2], [0, 0]], ids=str)
    def test_rows_may_be_empty(self, lengths: Sequence[int]) -> None:
        nested = to_nested_by_length(torch.ones(2, 3), torch.tensor(lengths))
        assert [len(row) for row in nested.unbind()] == lengths

    def test_length_above_the_width_means_the_width(self) -> None:
        nested = to_nested_by_length(torch.ones(2, 3), torch.tensor([9, 1]))
        assert [len(row) for row in nested.unbind()] == [3, 1]

    def test_negative_length_is_refused_naming_the_row(self) -> None:
        with pytest.raises(ValueError, match="row 1 has -2"):
            to_nested_by_length(torch.ones(3, 3), torch.tensor([1, -2, -1]))

    def test_no_rows_give_a_nested_tensor_without_rows(self) -> None:
        nested = to_nested_by_length(torch.ones(0, 3, 2), torch.zeros(0, dtype=torch.int64))
        assert nested.is_nested
        assert nested.size(0) == 0
        assert nested.values().shape == (0, 2)

    @pytest.mark.parametrize("shape", [(), (3,)], ids=str)
    def test_fewer_than_two_dims_are_refused_naming_the_shape(self, shape: Sequence[int]) -> None:
        with pytest.raises(ValueError, match=r"\(N, S, \.\.\.\).*\(3?,?\)"):
            to_nested_by_length(torch.ones(shape), torch.tensor([1, 1, 1]))

    @pytest.mark.parametrize("shape", [(2,), (3, 1), ()], ids=str)
    def test_lengths_of_another_shape_are_refused(self, shape: Sequence[int]) -> None:
        with pytest.raises(ValueError, match="lengths shape"):
            to_nested_by_length(torch.ones(3, 3), torch.ones(shape, dtype=torch.int64))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
    def test_lengths_that_are_no_integers_are_refused(self, dtype: torch.dtype) -> None:
        with pytest.raises(TypeError, match="integers"):
            to_nested_by_length(torch.ones(3, 3), torch.ones(3, dtype=dtype))

    def test_nested_input_is_refused(self) -> None:
        nested = to_nested_by_length(torch.ones(2, 3), torch.tensor([1, 2]))
        with pytest.raises(ValueError, match="nested"):
            to_nested_by_length(nested, torch.tensor([1, 2]))

    def test_result_is_a_copy(self) -> None:
        padded = torch.ones(2, 3)
        nested = to_nested_by_length(padded, torch.tensor([3, 3]))
        padded.zero_()
        assert rows_of(nested) == [[1, 1, 1], [1, 1, 1]]

    def test_gradient_reaches_kept_entries_only(self) -> None:
        padded = torch.ones(2, 3, requires_grad=True)
        (grad,) = torch.autograd.grad(to_nested_by_length(padded, torch.tensor([1, 3])).values().sum(), padded)
        assert grad.tolist() == [[1, 0, 0], [1, 1, 1]]

    def test_non_contiguous_input_gives_the_same_rows(self) -> None:
        padded = torch.arange(12).reshape(4, 3).T
        assert rows_of(to_nested_by_length(padded, torch.tensor([2, 4, 1]))) == [[0, 3], [1, 4, 7, 10], [2]]

    def test_torch_pads_the_result_to_its_longest_row(self) -> None:
        nested = to_nested_by_length(torch.ones(3, 5), torch.tensor([2, 3, 1]))
        assert torch.nested.to_padded_tensor(nested, 0.0).shape == (3, 3)


class TestStackOrNest:
    def test_no_rows_give_an_empty_float_tensor(self) -> None:
        assert stack_or_nest([]).shape == (0,)
        assert stack_or_nest([]).dtype == torch.float32

    def test_rows_of_one_shape_are_stacked(self) -> None:
        assert torch.equal(stack_or_nest([torch.zeros(2, 3), torch.ones(2, 3)])[1], torch.ones(2, 3))

    def test_scalars_become_a_vector(self) -> None:
        assert stack_or_nest([torch.tensor(3), torch.tensor(4)]).tolist() == [3, 4]

    def test_stacking_promotes_mixed_dtypes(self) -> None:
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

    def test_feature_as_wide_as_the_longest_row_is_taken_for_a_token_field(self) -> None:
        assert maybe_pack_jagged(torch.ones(2, 3, 4), torch.tensor([2, 3])).is_nested

    def test_without_rows_the_field_stays_rectangular(self) -> None:
        assert not maybe_pack_jagged(torch.ones(0, 3), torch.zeros(0, dtype=torch.int64)).is_nested

    @pytest.mark.parametrize("shape", [(2, 3), (2, 5)], ids=["packed", "rectangular"])
    def test_result_requires_no_grad(self, shape: Sequence[int]) -> None:
        assert not maybe_pack_jagged(torch.ones(shape, requires_grad=True), torch.tensor([1, 3])).requires_grad

    def test_rectangular_result_is_contiguous(self) -> None:
        assert maybe_pack_jagged(torch.ones(5, 2).T, torch.tensor([1, 3])).is_contiguous()

    def test_nested_field_comes_back_as_it_is(self) -> None:
        nested = as_nested_tensor([torch.ones(1), torch.ones(3)], layout=torch.jagged)
        assert maybe_pack_jagged(nested, torch.tensor([1, 3])) is nested

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

    def test_without_rows_the_field_stays_rectangular(self) -> None:
        assert not pack_per_token_field(torch.ones(0, 3), torch.zeros(0, dtype=torch.int64)).is_nested

    def test_result_requires_no_grad(self) -> None:
        assert not pack_per_token_field(torch.ones(2, 5, requires_grad=True), torch.tensor([1, 3])).requires_grad

    def test_nested_field_comes_back_as_it_is(self) -> None:
        nested = as_nested_tensor([torch.ones(1), torch.ones(3)], layout=torch.jagged)
        assert pack_per_token_field(nested, torch.tensor([1, 3])) is nested


class TestPackJaggedFields:
    def test_token_fields_are_packed_and_others_stay(self) -> None:
        fields = {"ids": torch.ones(2, 3), "reward": torch.ones(2), "image": torch.ones(2, 7)}
        td = pack_jagged_fields(fields, lengths=torch.tensor([1, 3]))
        assert td.batch_size == (2,)
        assert {name: td[name].is_nested for name in fields} == {
            "ids": True,
            "reward": False,
            "image": False,
        }

    def test_token_fields_of_one_batch_can_be_combined(self) -> None:
        fields = {"a": torch.full((2, 3), 2.0), "b": torch.full((2, 3), 3.0)}
        td = pack_jagged_fields(fields, lengths=torch.tensor([1, 3]))
        assert rows_of(td["a"] * td["b"]) == [[6.0], [6.0, 6.0, 6.0]]

    def test_named_token_fields_are_packed_whatever_their_width(self) -> None:
        fields = {"ids": torch.ones(2, 8), "image": torch.ones(2, 3)}
        td = pack_jagged_fields(fields, lengths=torch.tensor([1, 3]), token_aligned_fields={"ids", "absent"})
        assert {name: td[name].is_nested for name in fields} == {"ids": True, "image": False}

    def test_object_array_is_forwarded(self) -> None:
        column = objects("a", [1], None)
        assert pack_jagged_fields({"o": column}, lengths=torch.tensor([1, 1, 1]))["o"] is column

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

    def test_without_lengths_all_stays_rectangular_and_rows_come_from_the_fields(self) -> None:
        td = pack_jagged_fields({"a": torch.ones(3, 2), "o": objects("x", "y", "z")}, lengths=None)
        assert td.batch_size == (3,)
        assert td["a"].shape == (3, 2)

    @pytest.mark.parametrize("lengths", [None, torch.zeros(0, dtype=torch.int64)], ids=["none", "empty"])
    def test_without_fields_there_are_no_rows(self, lengths: torch.Tensor | None) -> None:
        assert pack_jagged_fields({}, lengths=lengths).batch_size == (0,)

    def test_without_rows_fields_stay_rectangular(self) -> None:
        td = pack_jagged_fields({"a": torch.ones(0, 4)}, lengths=torch.zeros(0, dtype=torch.int64))
        assert td["a"].shape == (0, 4)

    def test_result_requires_no_grad(self) -> None:
        fields = {"a": torch.ones(2, 3, requires_grad=True), "b": torch.ones(2, requires_grad=True)}
        td = pack_jagged_fields(fields, lengths=torch.tensor([1, 3]))
        assert not any(leaf.requires_grad for leaf in td.values())


class TestResponseFromNested:
    def nested(self, *rows: Sequence[Any]) -> torch.Tensor:
        return as_nested_tensor([torch.tensor(row, dtype=torch.float32) for row in rows], layout=torch.jagged)

    def test_response_is_cut_from_the_end_and_shifted_left_by_one(self) -> None:
        full = self.nested([0, 1, 2, 3, 4], [10, 11, 12])
        mask = self.nested([1, 1], [1])
        assert rows_of(response_from_nested(full, mask)) == [[2, 3], [11]]

    def test_empty_response_gives_an_empty_row(self) -> None:
        full = self.nested([0, 1, 2], [10, 11], [])
        mask = self.nested([], [1], [])
        assert rows_of(response_from_nested(full, mask)) == [[], [10], []]

    def test_response_without_a_prompt_is_refused_naming_the_row(self) -> None:
        with pytest.raises(ValueError, match=r"row 1: a response of 2 tokens in a sequence of 2"):
            response_from_nested(self.nested([0, 1, 2], [10, 11]), self.nested([1], [1, 1]))

    def test_different_numbers_of_rows_are_refused(self) -> None:
        with pytest.raises(ValueError, match="2 rows, response_mask has 1"):
            response_from_nested(self.nested([0, 1, 2], [10, 11]), self.nested([1]))

    @pytest.mark.parametrize("name", ["full", "response_mask"])
    def test_rectangular_argument_is_refused(self, name: str) -> None:
        arguments = {"full": self.nested([0, 1, 2]), "response_mask": self.nested([1]), name: torch.ones(1, 2)}
        with pytest.raises(TypeError, match=f"{name} must be a nested tensor"):
            response_from_nested(**arguments)

    def test_result_can_be_multiplied_by_the_mask(self) -> None:
        mask = self.nested([1, 0], [1])
        response = response_from_nested(self.nested([0, 1, 2, 3, 4], [10, 11, 12]), mask)
        assert rows_of(response * mask) == [[2, 0], [11]]

    def test_gradient_reaches_the_shifted_entries(self) -> None:
        values = torch.arange(5.0, requires_grad=True)
        full = nested_tensor_from_jagged(values, torch.tensor([0, 3, 5]), min_seqlen=2, max_seqlen=3)
        (grad,) = torch.autograd.grad(response_from_nested(full, self.nested([1], [1])).values().sum(), values)
        assert grad.tolist() == [0, 1, 0, 1, 0]

    def test_mask_that_is_a_window_on_larger_values_gives_rows_of_its_lengths(self) -> None:
        mask = nested_tensor_from_jagged(torch.ones(5), torch.tensor([2, 3, 5]), min_seqlen=1, max_seqlen=2)
        full = self.nested([0, 1, 2], [10, 11, 12, 13])
        assert rows_of(response_from_nested(full, mask)) == [[1], [11, 12]]

    def test_holes_in_both_arguments_are_skipped(self) -> None:
        full = nested_tensor_from_jagged(
            torch.arange(9.0), torch.tensor([0, 5, 9]), lengths=torch.tensor([4, 3]), min_seqlen=3, max_seqlen=4
        )
        mask = nested_tensor_from_jagged(
            torch.ones(6), torch.tensor([0, 3, 6]), lengths=torch.tensor([2, 1]), min_seqlen=1, max_seqlen=2
        )
        assert rows_of(response_from_nested(full, mask)) == [[1, 2], [6]]

    @needs_jagged_slices
    def test_a_slice_of_a_batch_is_a_mask(self) -> None:
        full = self.nested([0, 1, 2, 3], [5, 6, 7])
        sliced = TensorDict({"m": self.nested([1], [1, 1], [1])}, [3])[1:]["m"]
        assert rows_of(response_from_nested(full, sliced)) == [[1, 2], [6]]

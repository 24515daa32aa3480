"""Stripping padding before a put, against slices of Python bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorDict
from tests.tensors import objects, raw
from torch.nested import as_nested_tensor, nested_tensor_from_jagged

from dataplane_client._values.columns_layout import join_values
from dataplane_client._values.wire_columns import encode_columns
from dataplane_client.codec import (
    dtype_name,
    maybe_pack_jagged,
    pack_jagged_fields,
    pack_per_token_field,
    response_from_nested,
    stack_or_nest,
    to_nested_by_length,
    unwrap_wire_stripped_payload,
    with_padded_rows,
)

Fields = dict[str, Any]
Sent = list[tuple[object, ...]]
"""Name, kind, dtype, row shape, lengths and bytes of each column of a put."""

DTYPES = [torch.bool, torch.uint8, torch.bfloat16, torch.int32, torch.int64, torch.complex128]


def rows_of(nested: torch.Tensor) -> list[Any]:
    assert nested.layout is torch.jagged
    return [row.tolist() for row in nested.unbind()]


def sent(fields: Any) -> Sent:
    return [
        (c.name, c.kind, c.dtype, c.row_shape, None if c.lengths is None else c.lengths.tolist(), join_values([c]))
        for c in encode_columns(fields)
    ]


def expected(fields: Fields, lengths: list[int], names: set[str] | None) -> Iterator[tuple[object, ...]]:
    """Per-token fields, which are those that are named, else those as wide as the longest row, are cut to lengths."""
    for name, value in fields.items():
        data = raw(value)
        width = value.shape[1] if value.dim() > 1 else -1
        if width >= max(lengths) and (width == max(lengths) if names is None else name in names):
            entry = int(np.prod(value.shape[2:], dtype=int)) * value.itemsize
            rows = [data[i * width * entry :][: length * entry] for i, length in enumerate(lengths)]
            yield name, "jagged", dtype_name(value.dtype), tuple(value.shape[2:]), lengths, b"".join(rows)
        else:
            yield name, "dense", dtype_name(value.dtype), tuple(value.shape[1:]), None, data


@st.composite
def batches(draw: st.DrawFn) -> tuple[Fields, list[int], set[str] | None]:
    """Fields of every width and layout of memory, some of which require gradients."""
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    fields: Fields = {}
    for number in range(draw(st.integers(0, 5))):
        dtype = draw(st.sampled_from(DTYPES))
        width = max(0, max(lengths) + draw(st.sampled_from([0, 0, 2, -1])))
        shape = [len(lengths), *draw(st.sampled_from([(), (width, *draw(st.lists(st.integers(0, 3), max_size=2)))]))]
        size = int(np.prod(shape, dtype=int)) * dtype.itemsize
        value = (torch.arange(size) % (2 if dtype is torch.bool else 251)).to(torch.uint8).view(dtype).reshape(shape)
        kind = draw(st.sampled_from(["contiguous", "strided", "gradient"]))
        if kind == "gradient" and (dtype.is_floating_point or dtype.is_complex):
            value.requires_grad_()
        fields[f"x{number}"] = torch.stack([value, value], -1)[..., 0] if kind == "strided" else value
    names = draw(st.none() | st.sets(st.sampled_from([*fields, "absent"])))
    return fields, lengths, names


@given(batch=batches(), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_padding_is_cut_off_and_other_fields_stay(
    batch: tuple[Fields, list[int], set[str] | None], dtype: torch.dtype
) -> None:
    fields, rows, names = batch
    lengths, wanted = torch.tensor(rows, dtype=dtype), list(expected(*batch))
    packed = pack_jagged_fields(fields, lengths=lengths, token_aligned_fields=names)
    assert packed.batch_size == (len(rows),)
    assert not any(leaf.requires_grad for leaf in packed.values())
    assert sent(packed) == sent(with_padded_rows(fields, lengths, names)) == wanted
    for name, value in fields.items():
        one = pack_per_token_field(value, lengths) if names and name in names else maybe_pack_jagged(value, lengths)
        if names is None or name in names:
            assert sent({name: one}) == [column for column in wanted if column[0] == name]
            assert not one.requires_grad
            assert one.is_nested or one.is_contiguous()


@given(lengths=st.lists(st.integers(0, 6), max_size=5), width=st.integers(0, 4), dtype=st.sampled_from(DTYPES))
def test_rows_are_cut_to_their_lengths_and_at_the_width(lengths: list[int], width: int, dtype: torch.dtype) -> None:
    numbers = torch.arange(len(lengths) * width * 2).reshape(len(lengths), width, 2)
    padded = (numbers % (2 if dtype is torch.bool else 100)).to(dtype)
    nested = to_nested_by_length(padded, torch.tensor(lengths, dtype=torch.int64))
    assert (nested.is_nested, nested.dtype) == (True, dtype)
    assert (nested.size(0), nested.values().shape) == (len(lengths), (sum(min(n, width) for n in lengths), 2))
    rows = [row[:length] for row, length in zip(padded.tolist(), lengths, strict=True)]
    padded.zero_()  # the result is a copy
    assert nested.values().tolist() == [entry for row in rows for entry in row]
    offsets: torch.Tensor = nested.offsets()  # type: ignore[attr-defined]  # which torch does not declare
    assert offsets.diff().tolist() == [len(row) for row in rows]


def test_gradients_reach_the_kept_entries_only() -> None:
    padded = torch.ones(2, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(to_nested_by_length(padded, torch.tensor([1, 3])).values().sum(), padded)
    assert grad.tolist() == [[1, 0, 0], [1, 1, 1]]


def test_token_fields_of_one_batch_can_be_combined() -> None:
    fields = {"a": torch.full((2, 3), 2.0), "b": torch.full((2, 3), 3.0)}
    td = pack_jagged_fields(fields, lengths=torch.tensor([1, 3]))
    assert rows_of(td["a"] * td["b"]) == [[6.0], [6.0, 6.0, 6.0]]
    assert torch.nested.to_padded_tensor(td["a"], 0.0).shape == (2, 3)


@pytest.mark.parametrize("lengths", [None, torch.zeros(0, dtype=torch.int64)], ids=["none", "empty"])
def test_without_rows_or_lengths_all_stays_as_it_is(lengths: torch.Tensor | None) -> None:
    assert pack_jagged_fields({}, lengths=lengths).batch_size == (0,)
    assert pack_jagged_fields({"a": torch.ones(0, 4)}, lengths=lengths)["a"].shape == (0, 4)
    column = objects("x", [1], None)
    td = pack_jagged_fields({"a": torch.ones(3, 2), "o": column}, lengths=None)
    assert (td.batch_size, td["a"].shape, td["o"] is column) == ((3,), (3, 2), True)


@pytest.mark.parametrize("pack", [maybe_pack_jagged, pack_per_token_field])
def test_a_nested_field_comes_back_as_it_is(pack: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    nested = as_nested_tensor([torch.ones(1), torch.ones(3)], layout=torch.jagged)
    assert pack(nested, torch.tensor([1, 3])) is nested


def test_a_put_copies_no_padded_tensor_and_takes_objects_and_nested_tensors_beside() -> None:
    nested = as_nested_tensor([torch.arange(2), torch.arange(1)], layout=torch.jagged)
    conjugated = torch.tensor([[1 + 2j, 3j], [4j, 5]]).conj()
    fields: Fields = {"a": nested, "b": torch.zeros(2, 2), "c": objects("x", None), "d": torch.zeros(2)}
    fields["e"], lengths = conjugated, torch.tensor([2, 1])
    found = with_padded_rows(fields, lengths, None)
    assert list(found) == list(fields)
    assert sent(found) == sent(pack_jagged_fields(fields, lengths=lengths))
    tokens = torch.arange(6).reshape(2, 3)
    (column,) = encode_columns(with_padded_rows({"tokens": tokens}, torch.tensor([3, 1]), None))
    assert np.frombuffer(column.values, np.uint8).ctypes.data == tokens.data_ptr()


# -- refusals ----------------------------------------------------------------------------------------------------------

PAIR, NESTED = torch.ones(2, 3), as_nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
LENGTHS: dict[str, tuple[Any, type[Exception], str]] = {
    "negative": (torch.tensor([1, -2]), ValueError, "row 1 .*-2"),
    "2-d": (torch.tensor([[1], [1]]), ValueError, "lengths"),
    "one number": (torch.tensor(1), ValueError, "lengths"),
    "floats": (torch.ones(2), TypeError, "integers"),
    "bools": (torch.ones(2, dtype=torch.bool), TypeError, "integers"),
}
PACKERS: list[Callable[[torch.Tensor, torch.Tensor], object]] = [
    to_nested_by_length,
    maybe_pack_jagged,
    pack_per_token_field,
    lambda value, lengths: pack_jagged_fields({"x": value}, lengths=lengths),
    lambda value, lengths: with_padded_rows({"x": value}, lengths, None),
]
FIELDS: dict[str, tuple[Any, type[Exception], str]] = {
    "a set": ({1, 2}, TypeError, "set"),
    "a str": ("ab", TypeError, "str"),
    "dates": (np.zeros(2, "M8[s]"), TypeError, "datetime64"),
    "None": (None, TypeError, "NoneType"),
    "a sparse tensor": (torch.eye(2).to_sparse(), TypeError, "sparse"),
    "three rows": (torch.ones(3, 2), ValueError, "3 rows.*2 rows"),
    "a list of three": ([1, 2, 3], ValueError, "3 rows.*2 rows"),
    "a scalar": (torch.tensor(1.0), ValueError, "2 rows"),
    "one object": (objects("a"), ValueError, "1 row, .*2 rows"),
}


@pytest.mark.parametrize(("lengths", "error", "fact"), LENGTHS.values(), ids=LENGTHS)
def test_lengths_that_are_none_are_refused(lengths: torch.Tensor, error: type[Exception], fact: str) -> None:
    for pack in PACKERS:
        with pytest.raises(error, match=fact):
            pack(PAIR, lengths)


@pytest.mark.parametrize(
    "padded", [torch.ones(()), torch.ones(2), torch.ones(3, 3), NESTED], ids=["0-d", "1-d", "other rows", "nested"]
)
def test_what_has_no_padded_rows_is_not_nested_by_length(padded: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="shape"):
        to_nested_by_length(padded, torch.tensor([2, 1]))


@pytest.mark.parametrize(("value", "error", "fact"), FIELDS.values(), ids=FIELDS)
def test_a_field_that_does_not_fit_is_refused_by_name(value: object, error: type[Exception], fact: str) -> None:
    fields, lengths = {"ok": torch.ones(2), "bad": value}, torch.tensor([1, 1])
    with pytest.raises(error, match=f"'bad'.*{fact}"):
        pack_jagged_fields(fields, lengths=lengths)
    with pytest.raises(error, match=f"'bad'.*{fact}"):
        with_padded_rows(fields, lengths, {"bad"})
    with pytest.raises(error, match=f"'bad'.*{fact}"):
        pack_jagged_fields(fields, lengths=None)


def test_a_field_without_rows_is_refused_by_the_rows_of_another() -> None:
    with pytest.raises(ValueError, match=r"'bad'.*a 0-d value, but the batch has 1 row$"):
        pack_jagged_fields({"bad": torch.tensor(1.0), "ok": torch.ones(1)}, lengths=None)


# -- rows and payloads -------------------------------------------------------------------------------------------------


def test_rows_of_one_shape_are_stacked_in_a_dtype_that_holds_all() -> None:
    assert (stack_or_nest([]).shape, stack_or_nest([]).dtype) == ((0,), torch.float32)
    assert torch.equal(stack_or_nest([torch.zeros(2, 3), torch.ones(2, 3)])[1], torch.ones(2, 3))
    assert stack_or_nest([torch.tensor(3), torch.tensor(4)]).tolist() == [3, 4]
    assert stack_or_nest([torch.tensor(3), torch.tensor(0.5)]).dtype == torch.float32


def test_ragged_rows_are_nested_in_the_dim_where_they_differ() -> None:
    assert rows_of(stack_or_nest([torch.arange(2), torch.arange(3)])) == [[0, 1], [0, 1, 2]]
    later = stack_or_nest([torch.zeros(2, 3), torch.ones(2, 1)])
    assert [tuple(row.shape) for row in later.unbind()] == [(2, 3), (2, 1)]
    with pytest.raises(RuntimeError):
        stack_or_nest([torch.zeros(2), torch.zeros(2, 3)])


def test_a_stripped_payload_is_what_it_was() -> None:
    for payload in ("hi", None, [1, 2], {"a": 1}, 3.5):
        assert unwrap_wire_stripped_payload(NonTensorData(payload)) == payload
    assert unwrap_wire_stripped_payload(TensorDict({}, [])) is None
    for item in ("hi", None, 3, TensorDict({"a": torch.ones(1)}, []), TensorDict({}, [3])):
        assert unwrap_wire_stripped_payload(item) is item


# -- responses ---------------------------------------------------------------------------------------------------------


def nest(*rows: Sequence[float]) -> torch.Tensor:
    return as_nested_tensor([torch.tensor(row, dtype=torch.float32) for row in rows], layout=torch.jagged)


def window(offsets: list[int], lengths: list[int] | None = None) -> torch.Tensor:
    """Rows of the numbers 0 to 8, with holes between them if there are lengths."""
    sizes = lengths or [end - start for start, end in itertools.pairwise(offsets)]
    holes = None if lengths is None else torch.tensor(lengths)
    return nested_tensor_from_jagged(
        torch.arange(9.0), torch.tensor(offsets), holes, min_seqlen=min(sizes), max_seqlen=max(sizes)
    )


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=5))
def test_a_response_is_cut_from_the_end_and_shifted_left_by_one(sizes: list[tuple[int, int]]) -> None:
    """sizes: tokens of prompt and response."""
    rows = [[100.0 * row + i for i in range(sum(size))] for row, size in enumerate(sizes)]
    mask = nest(*([1.0] * response for _, response in sizes))
    got = response_from_nested(nest(*rows), mask)
    assert rows_of(got) == [row[prompt - 1 : -1] for row, (prompt, _) in zip(rows, sizes, strict=True)]
    assert rows_of(got * mask) == rows_of(got)


@pytest.mark.parametrize(
    ("full", "mask", "rows"),
    [
        (nest([0, 1, 2], [10, 11], []), nest([], [1], []), [[], [10], []]),
        (nest([0, 1, 2], [10, 11, 12, 13]), window([2, 3, 5]), [[1], [11, 12]]),
        (window([0, 5, 9], [4, 3]), window([0, 3, 6], [2, 1]), [[1, 2], [6]]),
    ],
    ids=["empty rows", "a mask that is a window on larger values", "holes in both"],
)
def test_responses_of_nested_tensors_of_every_make(full: torch.Tensor, mask: torch.Tensor, rows: list[Any]) -> None:
    assert rows_of(response_from_nested(full, mask)) == rows


@pytest.mark.parametrize(
    ("full", "mask", "error", "fact"),
    [
        (nest([0, 1, 2], [10, 11]), nest([1], [1, 1]), ValueError, "row 1: .* 2 tokens"),
        (nest([0, 1, 2], [10, 11]), nest([1]), ValueError, "2 rows.* 1"),
        (torch.ones(1, 2), nest([1]), TypeError, "full"),
        (nest([0, 1, 2]), torch.ones(1, 2), TypeError, "response_mask"),
    ],
    ids=["no prompt", "other rows", "rectangular full", "rectangular mask"],
)
def test_a_response_that_cannot_be_cut_is_refused(
    full: torch.Tensor, mask: torch.Tensor, error: type[Exception], fact: str
) -> None:
    with pytest.raises(error, match=fact):
        response_from_nested(full, mask)


def test_gradients_reach_the_shifted_entries() -> None:
    values = torch.arange(5.0, requires_grad=True)
    full = nested_tensor_from_jagged(values, torch.tensor([0, 3, 5]), min_seqlen=2, max_seqlen=3)
    (grad,) = torch.autograd.grad(response_from_nested(full, nest([1], [1])).values().sum(), values)
    assert grad.tolist() == [0, 1, 0, 1, 0]

"""Padded fields on their way into a put are the fields, and the errors, that packing them would give."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nested import as_nested_tensor

from dataplane_client._jagged import PaddedRows
from dataplane_client.codec import pack_jagged_fields, with_padded_rows
from dataplane_client.columns_layout import join_values
from dataplane_client.wire_columns import encode_columns

Fields = dict[str, Any]
DTYPES = [torch.bool, torch.uint8, torch.bfloat16, torch.int32, torch.int64, torch.complex128]


def sent(fields: Any) -> list[tuple[object, ...]]:
    """All that a put would send of fields."""
    return [
        (c.name, c.kind, c.dtype, c.row_shape, None if c.lengths is None else c.lengths.tolist(), join_values([c]))
        for c in encode_columns(fields)
    ]


def tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    high = 2 if dtype is torch.bool else 251
    return (torch.arange(size) % high).to(torch.uint8).view(dtype).reshape(shape)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Fields, torch.Tensor, set[str] | None]:
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    n_rows, longest, fields = len(lengths), max(lengths), {}
    for number in range(draw(st.integers(0, 5))):
        trailing = draw(st.lists(st.integers(0, 3), max_size=2))
        width = draw(st.sampled_from([longest, longest + 2, max(0, longest - 1)]))
        value = tensor(draw(st.sampled_from(DTYPES)), n_rows, *draw(st.sampled_from([(), (width, *trailing)])))
        make: Callable[[torch.Tensor], torch.Tensor] = draw(
            st.sampled_from([lambda t: t, lambda t: torch.stack([t, t], -1)[..., 0], torch.Tensor.requires_grad_])
        )
        fields[f"x{number}"] = value if make is torch.Tensor.requires_grad_ and not is_real(value) else make(value)
    names = draw(st.one_of(st.none(), st.sets(st.sampled_from([*fields, "absent"]))))
    return fields, torch.tensor(lengths, dtype=draw(st.sampled_from([torch.int32, torch.int64]))), names


def is_real(value: torch.Tensor) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex


@settings(deadline=None, max_examples=200)
@given(batches())
def test_what_is_sent_is_what_packing_would_send(batch: tuple[Fields, torch.Tensor, set[str] | None]) -> None:
    fields, lengths, names = batch
    packed = pack_jagged_fields(fields, lengths=lengths, token_aligned_fields=names)
    assert sent(with_padded_rows(fields, lengths, names)) == sent(packed)


def test_padded_tensors_are_not_copied() -> None:
    tokens = torch.arange(6).reshape(2, 3)
    (field,) = with_padded_rows({"tokens": tokens}, torch.tensor([3, 1]), None).values()
    assert isinstance(field, PaddedRows)
    assert (len(field), field.padded.data_ptr()) == (2, tokens.data_ptr())
    (column,) = encode_columns({"tokens": field})
    assert np.frombuffer(column.values, np.uint8).ctypes.data == tokens.data_ptr()


def test_objects_and_nested_tensors_travel_beside_padded_rows() -> None:
    nested = as_nested_tensor([torch.arange(2), torch.arange(1)], layout=torch.jagged)
    fields: Fields = {"a": nested, "b": torch.zeros(2, 2), "c": np.array(["x", None], object), "d": torch.zeros(2)}
    lengths = torch.tensor([2, 1])
    found = with_padded_rows(fields, lengths, None)
    assert list(found) == list(fields)
    assert sent(found) == sent(pack_jagged_fields(fields, lengths=lengths))


def test_conjugated_values_are_sent_as_they_read() -> None:
    fields = {"x": tensor(torch.complex64, 2, 2).nan_to_num(1.0).conj()}
    lengths = torch.tensor([2, 1])
    assert sent(with_padded_rows(fields, lengths, None)) == sent(pack_jagged_fields(fields, lengths=lengths))


REFUSED: dict[str, tuple[Fields, torch.Tensor, Collection[str] | None]] = {
    "lengths that are no integers": ({"x": torch.zeros(2, 2)}, torch.tensor([1.0, 2.0]), None),
    "bools for lengths": ({"x": torch.zeros(2, 1)}, torch.tensor([True, False]), None),
    "a negative length": ({"x": torch.zeros(2, 2)}, torch.tensor([2, -1]), None),
    "lengths of two dims": ({"x": torch.zeros(2, 2)}, torch.tensor([[2, 1]]), None),
    "another number of rows": ({"x": torch.zeros(2, 2), "y": torch.zeros(3, 2)}, torch.tensor([2, 1]), None),
    "another number of rows alone": ({"y": torch.zeros(3, 2)}, torch.tensor([2, 1]), {"y"}),
    "a scalar": ({"x": torch.zeros(2, 2), "y": torch.tensor(1)}, torch.tensor([2, 1]), None),
    "a str": ({"x": torch.zeros(2, 2), "y": "ab"}, torch.tensor([2, 1]), None),
    "a list of other rows": ({"y": [1, 2, 3]}, torch.tensor([2, 1]), None),
    "objects of other rows": ({"y": np.array([None], object)}, torch.tensor([2, 1]), None),
}


@pytest.mark.parametrize(("fields", "lengths", "names"), REFUSED.values(), ids=REFUSED)
def test_errors_are_those_of_packing(fields: Fields, lengths: torch.Tensor, names: Collection[str] | None) -> None:
    with pytest.raises((TypeError, ValueError)) as expected:
        pack_jagged_fields(fields, lengths=lengths, token_aligned_fields=None if names is None else set(names))
    with pytest.raises((TypeError, ValueError)) as found:
        with_padded_rows(fields, lengths, names)
    assert (type(found.value), str(found.value)) == (type(expected.value), str(expected.value))

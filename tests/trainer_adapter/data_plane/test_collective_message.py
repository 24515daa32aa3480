"""Values are packed for other ranks, or refused by name before anything is sent."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer_adapter.data_plane.exchanged_values import equal, mapping_of, value_of

from dataplane_client.batched_data_dict.packed_tensor import PackedTensor
from dataplane_client.dtypes import WIRE_DTYPES
from trainer_adapter._collective_message import CollectiveMessage, allocate_buffers, pack_message, unpack_message

CPU = torch.device("cpu")
RAGGED_IN_DIM_2 = torch.nested.nested_tensor_from_jagged(torch.ones(3, 2), torch.tensor([0, 1, 3])).transpose(1, 2)


def received(values: dict[str, Any]) -> dict[str, Any]:
    """The values as another rank gets them."""
    message = pack_message(values, CPU)
    buffers = allocate_buffers(message.header, CPU)
    for target, source in zip(buffers, message.buffers, strict=True):
        target.copy_(source)
    return unpack_message(CollectiveMessage(message.header, buffers))


def test_values_arrive_as_they_were() -> None:
    for seed in range(100):
        values = mapping_of(random.Random(seed)) | {"one more": value_of(random.Random(-seed), 0)}
        assert equal(received(values), values), seed


def test_every_element_type_of_the_data_plane_arrives() -> None:
    for name in (entry.name for entry in WIRE_DTYPES):
        tensor = torch.arange(32, dtype=torch.uint8).view(getattr(torch, name)) if name != "bool" else torch.ones(3) > 0
        assert equal(received({"x": tensor}), {"x": tensor}), name


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(-3), -3),
        (np.bool_(True), True),
        ((1, (2,)), [1, [2]]),
        (bytearray(b"x"), b"x"),
        ({"a": np.float64(2.0)}, {"a": 2.0}),
    ],
)
def test_values_that_msgpack_lacks_arrive_as_the_nearest_type(value: object, expected: object) -> None:
    assert equal(received({"x": value}), {"x": expected})


def test_pending_conjugations_and_strides_are_resolved() -> None:
    tensor = torch.tensor([[1 + 2j, 3 - 1j], [0, 1j]]).conj().T
    assert torch.equal(received({"x": tensor})["x"], tensor)


def test_a_parameter_comes_as_a_plain_tensor() -> None:
    got = received({"x": torch.nn.Parameter(torch.ones(2))})["x"]
    assert equal(got, torch.ones(2))
    assert not got.requires_grad


def test_windows_and_nested_tensors_with_holes_come_as_their_rows() -> None:
    whole = torch.arange(12).reshape(3, 4)
    window = torch.nested.nested_tensor_from_jagged(torch.arange(12), torch.tensor([4, 8, 9]))
    holes = torch.nested.narrow(whole, 1, torch.tensor([1, 0, 2]), torch.tensor([2, 3, 0]), layout=torch.jagged)
    got = received({"window": window, "holes": holes})
    assert [row.tolist() for row in got["window"].unbind()] == [[4, 5, 6, 7], [8]]
    assert [row.tolist() for row in got["holes"].unbind()] == [[1, 2], [4, 5, 6], []]


def test_columns_with_equal_rows_can_be_combined() -> None:
    ends = torch.tensor([0, 1, 3])
    jagged = torch.nested.nested_tensor_from_jagged
    got = received({name: jagged(torch.ones(3), ends.clone(), min_seqlen=1, max_seqlen=2) for name in "ab"})
    assert (got["a"] + got["b"]).values().tolist() == [2, 2, 2]


def too_deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(2000):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("value", "fragment"),
    [
        ({1}, "unsupported value type set"),
        ([object()], "unsupported value type object"),
        (2**64, "unsupported value type int beyond 64 bits"),
        ("\ud800", "surrogates not allowed"),
        (too_deep(), "recursion limit"),
        ({(1, 2): 3}, ""),
        (torch.float32, "unsupported value type dtype"),
        (np.zeros(3), "unsupported value type float64 array of shape (3,)"),
        (np.empty((1, 1), object), "unsupported value type object array of shape (1, 1)"),
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo; make it dense first"),
        (torch.empty(2, device="meta"), "meta device"),
        (RAGGED_IN_DIM_2, "must have layout torch.jagged and be ragged in dim 1"),
        (PackedTensor([torch.eye(2).to_sparse()], 0), "make it dense first"),
    ],
)
def test_an_unsupported_value_is_refused_by_name(value: object, fragment: str) -> None:
    with pytest.raises(TypeError, match=rf"^value 'x': .*{re.escape(fragment)}"):
        received({"fine": 1, "x": value})


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        (None, "values must be a mapping, got NoneType"),
        ([1], "got list"),
        ({1: 2}, "value name 1 must be a str, got int"),
    ],
)
def test_what_has_no_names_is_refused(values: Any, fragment: str) -> None:
    with pytest.raises(TypeError, match=fragment):
        pack_message(values, CPU)

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

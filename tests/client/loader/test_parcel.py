"""A batch that goes through a memory file comes out as it went in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nested import nested_tensor

from dataplane_client.loader import _parcel

HEAD = {"ids": ["a", "b", "c"], "generations": [1, 2**62, 3], "tags": [{"k": None}, {}, {"k": 0.5}]}


def through(batch: dict[str, Any]) -> dict[str, Any]:
    head, got = _parcel.unpack(_parcel.pack(HEAD, batch), "ids")
    assert head == HEAD
    return dict(got)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3),
        torch.arange(30).reshape(3, 5, 2).transpose(1, 2),
        torch.tensor([True, False, True]),
        torch.rand(3, 7).to(torch.bfloat16),
        torch.rand(3, 4).to(torch.float8_e4m3fn),
        torch.full((3, 2), float("nan")),
        torch.empty(3, 0),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_a_tensor_comes_out_as_it_went_in(tensor: torch.Tensor) -> None:
    got = through({"odd": torch.zeros(3, 1, dtype=torch.uint8), "x": tensor})["x"]
    assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
    assert got.contiguous().view(torch.uint8).tolist() == tensor.contiguous().view(torch.uint8).tolist()


def test_jagged_fields_come_out_with_offsets_that_they_share() -> None:
    rows = [torch.arange(2), torch.arange(0), torch.arange(4)]
    x = nested_tensor(rows, layout=torch.jagged)
    got = through({"x": x, "y": nested_tensor([row * 2.0 for row in rows], layout=torch.jagged)})
    assert [row.tolist() for row in (got["x"] * got["y"]).unbind()] == [[0, 2], [], [0, 2, 8, 18]]


def test_objects_come_out_as_they_went_in() -> None:
    objects = np.array([{"a": [1, None]}, "text", b"bytes"], object)
    assert through({"x": objects})["x"].tolist() == objects.tolist()


def test_tensors_live_in_the_parcel_and_can_be_written_to() -> None:
    got = through({"x": torch.zeros(3, 1000)})["x"]
    got += 1
    assert got.sum() == 3000


def test_no_descriptor_is_left_when_the_tensors_are_gone() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        through({"x": torch.zeros(3)})
    assert len(list(Path("/proc/self/fd").iterdir())) == before

"""Padding against an oracle that works on Python bytes and knows each element type's encoding of 1."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch.nested import nested_tensor_from_jagged

from dataplane_client._rows import bits, pad_by_index
from dataplane_client.codec import materialize
from dataplane_client.dtypes import WIRE_DTYPES

ONE = {
    **dict.fromkeys(["bool", "uint8", "int8"], b"\x01"),
    **dict.fromkeys(["uint16", "int16"], struct.pack("<H", 1)),
    **dict.fromkeys(["uint32", "int32"], struct.pack("<I", 1)),
    **dict.fromkeys(["uint64", "int64"], struct.pack("<Q", 1)),
    "float8_e4m3fn": b"\x38",
    "float8_e4m3fnuz": b"\x40",
    "float8_e5m2": b"\x3c",
    "float8_e5m2fnuz": b"\x40",
    "float8_e8m0fnu": b"\x7f",
    "float16": struct.pack("<e", 1),
    "bfloat16": b"\x80\x3f",
    "float32": struct.pack("<f", 1),
    "float64": struct.pack("<d", 1),
    "complex32": struct.pack("<ee", 1, 0),
    "complex64": struct.pack("<ff", 1, 0),
    "complex128": struct.pack("<dd", 1, 0),
}
NAMES = [entry.name for entry in WIRE_DTYPES]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def random_values(name: str, shape: Sequence[int], seed: int = 0) -> torch.Tensor:
    dtype = getattr(torch, name)
    count = int(np.prod(shape)) * dtype.itemsize
    source = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 2 if name == "bool" else 256, (count,), dtype=torch.uint8, generator=source)
    return data.view(dtype).reshape(shape)


def jagged(values: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int64, device=values.device)
    return nested_tensor_from_jagged(
        values, offsets=offsets, min_seqlen=min(lengths, default=0), max_seqlen=max(lengths, default=0)
    )


def padded_bytes(values: torch.Tensor, lengths: Sequence[int], width: int, pad: bytes) -> bytes:
    entry = int(np.prod(values.shape[1:]))
    rows, data, size = [], raw(values), entry * values.dtype.itemsize
    for length in lengths:
        rows.append(data[: length * size] + pad * (entry * (width - length)))
        data = data[length * size :]
    return b"".join(rows)


@pytest.mark.parametrize("lengths", [(3, 0, 1, 5), (4,), (2, 2), (), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("trailing", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_filled_up_to_the_longest_with_the_pad_value(
    name: str, trailing: tuple[int, ...], lengths: Sequence[int]
) -> None:
    pad_value, pad = (1, ONE[name]) if name in ONE else (0, b"\0" * getattr(torch, name).itemsize)
    values, width = random_values(name, (sum(lengths), *trailing)), max(lengths, default=0)
    td = TensorDict({"x": jagged(values, lengths)}, [len(lengths)])
    padded = materialize(td, pad_value_dict={"x": pad_value})["x"]
    assert (padded.dtype, padded.shape) == (values.dtype, (len(lengths), width, *trailing))
    assert raw(padded) == padded_bytes(values, lengths, width, pad)


@pytest.mark.parametrize("name", NAMES)
def test_rectangular_field_is_widened_with_the_pad_value(name: str) -> None:
    pad_value, pad = (1, ONE[name]) if name in ONE else (0, b"\0" * getattr(torch, name).itemsize)
    values = random_values(name, (3, 2, 2))
    padded = materialize(TensorDict({"x": values}, [3]), pad_value_dict={"x": pad_value}, pad_to_seqlen=4)["x"]
    assert padded.shape == (3, 4, 2)
    assert raw(padded) == padded_bytes(values.reshape(6, 2), (2, 2, 2), 4, pad)


@pytest.mark.parametrize("name", NAMES)
def test_padding_by_index_for_other_devices_equals_the_oracle(name: str) -> None:
    lengths, values = np.array([3, 0, 1]), random_values(name, (7, 2))
    starts = np.array([0, 3, 6])
    padded = pad_by_index(bits(values), starts, lengths, 3, torch.zeros((), dtype=bits(values).dtype))
    rows = torch.cat([bits(values)[:3], bits(values)[6:7]]).view(values.dtype)
    assert raw(padded) == padded_bytes(rows, lengths.tolist(), 3, b"\0" * values.dtype.itemsize)


@given(
    lengths=st.lists(st.integers(0, 6), max_size=8),
    trailing=st.lists(st.integers(0, 3), max_size=2),
    name=st.sampled_from(NAMES),
    pad_to_seqlen=st.integers(0, 8),
)
@settings(max_examples=150, deadline=None)
def test_any_ragged_shape_pads_as_the_oracle_does(
    lengths: Sequence[int], trailing: tuple[int, ...], name: str, pad_to_seqlen: int
) -> None:
    values = random_values(name, (sum(lengths), *trailing), seed=len(lengths))
    td = TensorDict({"x": jagged(values, lengths)}, [len(lengths)])
    padded = materialize(td, pad_to_seqlen=pad_to_seqlen)["x"]
    width = max([pad_to_seqlen, *lengths])
    assert padded.shape == (len(lengths), width, *trailing)
    assert raw(padded) == padded_bytes(values, lengths, width, b"\0" * values.dtype.itemsize)


LARGE = [(torch.int64, n) for n in (2**53 + 1, -(2**63), 2**63 - 1)] + [
    (torch.uint64, n) for n in (2**64 - 1, 2**53 + 1)
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize(
    ("dtype", "pad_value"),
    [*LARGE, (torch.int32, -100.0), *((dtype, float(n)) for dtype in FLOATS for n in ("inf", "-inf", "nan"))],
    ids=str,
)
def test_pad_values_arrive_exactly(dtype: torch.dtype, pad_value: float) -> None:
    td = TensorDict({"x": jagged(torch.zeros(1, dtype=torch.uint8).to(dtype), [1, 0])}, [2])
    got = materialize(td, pad_value_dict={"x": pad_value})["x"][1, 0].item()
    assert got == pad_value or (got != got and pad_value != pad_value)


@pytest.mark.parametrize(
    ("dtype", "pad_value"),
    [
        (torch.uint8, -1),
        (torch.uint8, 256),
        (torch.int64, 0.5),
        (torch.int64, 2**63),
        (torch.int32, float("nan")),
        (torch.int32, float("inf")),
        (torch.uint64, -1),
        (torch.bool, 2),
        (torch.float4_e2m1fn_x2, 1),
        (torch.float16, 70_000.0),
        (torch.bfloat16, -1e39),
        (torch.float8_e4m3fn, 1000),
    ],
    ids=str,
)
def test_pad_value_outside_the_dtype_is_refused_naming_the_field(dtype: torch.dtype, pad_value: float) -> None:
    values = torch.zeros(16, dtype=torch.uint8).view(dtype)
    td = TensorDict({"ids": jagged(values, [len(values)])}, [1])
    with pytest.raises(ValueError, match=r"'ids'.*pad value"):
        materialize(td, pad_value_dict={"ids": pad_value})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_cuda_tensors_are_padded_on_their_device(name: str) -> None:
    values = random_values(name, (9, 2))
    td = TensorDict({"x": jagged(values, [3, 0, 1, 5])}, [4])
    on_device = TensorDict({"x": jagged(values.cuda(), [3, 0, 1, 5])}, [4])
    padded = materialize(on_device, pad_to_seqlen=7)["x"]
    assert padded.device.type == "cuda"
    assert raw(padded.cpu()) == raw(materialize(td, pad_to_seqlen=7)["x"])

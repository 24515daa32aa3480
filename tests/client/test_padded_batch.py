"""A read that goes straight into rectangles gives the batch that materialize makes of the same columns, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch.nested import nested_tensor_from_jagged

from dataplane_client._placement import Destination, ReadBuffers
from dataplane_client._read_batches import PaddedBatch
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.codec import materialize
from dataplane_client.columns_layout import ColumnLayout, join_values
from dataplane_client.dtypes import WIRE_DTYPES
from dataplane_client.errors import InternalError
from dataplane_client.wire_columns import encode_columns

DTYPES = {entry.name: entry.torch_dtype for entry in WIRE_DTYPES}
PLAIN = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
PADS: list[float] = [0, 1, -1, 7, 2**53 + 1, 0.5, float("nan"), -0.0]


def read(td: TensorDict, pad_values: Mapping[str, float], pad_to_seqlen: int) -> BatchedDataDict[Any]:
    """The batch, read from the bytes that a put of td sends."""
    columns = encode_columns(td)
    n_rows = int(td.batch_size[0])
    padded = PaddedBatch(pad_values, pad_to_seqlen)
    buffers = ReadBuffers(columns, n_rows, Destination(padded.place))
    stream = buffers.stream()
    stream.add(0, memoryview(join_values(columns)))
    stream.finish()
    return padded.batch(buffers.columns, n_rows)


def content(value: Any) -> tuple[object, ...]:
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous()
        plain = value.view(PLAIN[value.dtype.itemsize])
        return value.dtype, tuple(value.shape), plain.numpy().tobytes()
    assert value.dtype == object
    return tuple(value.shape), value.tolist()


def attempt(make: Callable[[], BatchedDataDict[Any]]) -> tuple[object, ...]:
    """The batch's contents, or what its making is refused with."""
    try:
        batch = make()
    except ValueError as error:
        return type(error), str(error)
    return type(batch), [(name, content(value)) for name, value in batch.items()]


def assert_as_materialized(td: TensorDict, pad_values: Mapping[str, float], pad_to_seqlen: int) -> None:
    expected = attempt(lambda: materialize(td, "padded", pad_values, pad_to_seqlen))
    assert attempt(lambda: read(td, pad_values, pad_to_seqlen)) == expected


def tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Bits of all kinds, so that float types hold NaN and infinities too."""
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    return (torch.arange(size) * 37 % (2 if dtype is torch.bool else 256)).to(torch.uint8).view(dtype).reshape(shape)


def jagged(dtype: torch.dtype, lengths: list[int], trailing: tuple[int, ...]) -> torch.Tensor:
    return nested_tensor_from_jagged(
        tensor(dtype, (sum(lengths), *trailing)), offsets=torch.tensor([0, *np.cumsum(lengths)])
    )


@pytest.mark.parametrize("pad", [None, *PADS], ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("pad_to_seqlen", [0, 5])
def test_every_element_type_is_padded_as_by_materialize(
    dtype: torch.dtype, pad: float | None, pad_to_seqlen: int
) -> None:
    td = TensorDict(
        {
            "jagged": jagged(dtype, [2, 0, 4], ()),
            "trailing": jagged(dtype, [2, 0, 4], (3,)),
            "narrow": tensor(dtype, (3, 2, 2)),
            "wide": tensor(dtype, (3, 6)),
            "flat": tensor(dtype, (3,)),
        },
        [3],
    )
    assert_as_materialized(td, {} if pad is None else dict.fromkeys(map(str, td.keys()), pad), pad_to_seqlen)


@st.composite
def batches(draw: st.DrawFn) -> TensorDict:
    n_rows = draw(st.integers(1, 5))
    td = TensorDict({}, [n_rows])
    for number in range(draw(st.integers(1, 4))):
        dtype = draw(st.sampled_from([torch.bool, torch.bfloat16, torch.int32, torch.float64]))
        trailing = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
        kind = draw(st.sampled_from(["dense", "jagged", "object"]))
        if kind == "dense":
            td[f"x{number}"] = tensor(dtype, (n_rows, *trailing))
        elif kind == "jagged":
            lengths = draw(st.lists(st.integers(0, 6), min_size=n_rows, max_size=n_rows))
            td[f"x{number}"] = jagged(dtype, lengths, trailing)
        else:
            values = [draw(st.sampled_from([None, 1, "text", [1, 2]])) for _ in range(n_rows)]
            td[f"x{number}"] = NonTensorStack(*map(NonTensorData, values))
    return td


@settings(deadline=None, max_examples=150)
@given(batches(), st.dictionaries(st.sampled_from(["x0", "x1", "x2"]), st.sampled_from(PADS)), st.integers(0, 8))
def test_any_batch_is_padded_as_by_materialize(td: TensorDict, pads: dict[str, float], pad_to_seqlen: int) -> None:
    assert_as_materialized(td, pads, pad_to_seqlen)


def test_a_batch_may_be_written_to() -> None:
    batch = read(TensorDict({"x": jagged(torch.int64, [1, 2], ()), "y": torch.zeros(2)}, [2]), {}, 0)
    batch["x"].fill_(5)
    batch["y"].fill_(5)
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([[5, 5], [5, 5]], [5.0, 5.0])


@pytest.mark.parametrize(
    ("layout", "data"),
    [
        (ColumnLayout("x", "dense", "bool", (), None), b"\x01\x02"),
        (ColumnLayout("x", "jagged", "bool", (), np.array([2, 0], np.int64)), b"\x01\x02"),
        (ColumnLayout("x", "object", "", (), np.array([1, 1], np.int64)), b"\xc0\xc1"),
    ],
    ids=["dense bools", "jagged bools", "objects"],
)
def test_values_that_are_none_of_the_field_are_an_error_of_the_server(layout: ColumnLayout, data: bytes) -> None:
    padded = PaddedBatch({}, 0)
    buffers = ReadBuffers([layout], 2, Destination(padded.place))
    stream = buffers.stream()
    stream.add(0, memoryview(data))
    stream.finish()
    with pytest.raises(InternalError, match="'x'"):
        padded.batch(buffers.columns, 2)

"""Padding against an oracle that works on Python bytes and knows each element type's encoding of 1, and padded reads
against padding: a read that goes straight into rectangles gives the batch that materialize makes, bit for bit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict
from tests.tensors import jagged, raw, some

from dataplane_client import DataPlaneClient, connect
from dataplane_client._memory.placement import Destination, ReadBuffers
from dataplane_client._memory.read_batches import PaddedBatch
from dataplane_client._values.columns_layout import ColumnLayout
from dataplane_client._values.rows import bits, pad_by_index, row_index
from dataplane_client.codec import WIRE_DTYPES, materialize
from dataplane_client.errors import InternalError
from dataplane_client.options import TransportChoice
from dataplane_server.testing import running_server

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
WAYS: tuple[TransportChoice, ...] = ("shm", "grpc")
PADS: list[float] = [0, 1, -1, 7, 2**53 + 1, 0.5, float("nan"), -0.0]


def padded_bytes(values: torch.Tensor, lengths: Sequence[int], width: int, pad: bytes) -> bytes:
    entry = int(np.prod(values.shape[1:]))
    rows, data, size = [], raw(values), entry * values.dtype.itemsize
    for length in lengths:
        rows.append(data[: length * size] + pad * (entry * (width - length)))
        data = data[length * size :]
    return b"".join(rows)


def assert_padded_as_by_the_oracle(
    name: str, trailing: Sequence[int], lengths: Sequence[int], pad_value: int, pad_to_seqlen: int
) -> None:
    """Of rows of these lengths, and of rows of one length, whichever is not 0."""
    pad = ONE[name] if pad_value else bytes(getattr(torch, name).itemsize)
    ragged, even = some(name, sum(lengths), *trailing), some(name, len(lengths), 2, *trailing)
    td = TensorDict({"ragged": jagged(ragged, lengths), "even": even}, [len(lengths)])
    batch = materialize(td, "padded", {"ragged": pad_value, "even": pad_value}, pad_to_seqlen)
    widths = {"ragged": max([pad_to_seqlen, *lengths]), "even": max(pad_to_seqlen, 2)}
    for field, width in widths.items():
        assert (batch[field].dtype, batch[field].shape) == (ragged.dtype, (len(lengths), width, *trailing)), name
    assert raw(batch["ragged"]) == padded_bytes(ragged, lengths, widths["ragged"], pad), name
    assert raw(batch["even"]) == padded_bytes(even.flatten(0, 1), [2] * len(lengths), widths["even"], pad), name


def test_rows_of_every_element_type_are_filled_up_with_the_pad_value() -> None:
    for name, pad_to_seqlen in product(NAMES, (0, 4)):
        assert_padded_as_by_the_oracle(name, (2,), (3, 0, 1, 5), 1 if name in ONE else 0, pad_to_seqlen)


@given(
    name=st.sampled_from(NAMES),
    trailing=st.lists(st.integers(0, 3), max_size=2),
    lengths=st.lists(st.integers(0, 6), max_size=8),
    pad_value=st.integers(0, 1),
    pad_to_seqlen=st.integers(0, 8),
)
def test_any_shape_is_padded_as_by_the_oracle(
    name: str, trailing: list[int], lengths: list[int], pad_value: int, pad_to_seqlen: int
) -> None:
    assert_padded_as_by_the_oracle(name, trailing, lengths, pad_value if name in ONE else 0, pad_to_seqlen)


def test_padding_for_other_devices_is_padding_by_the_oracle() -> None:
    """White-box: only accelerators are padded by index."""
    lengths = torch.tensor([3, 0, 1])
    index = row_index(torch.tensor([0, 3, 6]), lengths, 3)
    for name in NAMES:
        values = some(name, 7, 2)
        padded = pad_by_index(bits(values), index, torch.zeros((), dtype=bits(values).dtype))
        rows = torch.cat([bits(values)[:3], bits(values)[6:7]]).view(values.dtype)
        assert raw(padded) == padded_bytes(rows, lengths.tolist(), 3, bytes(values.dtype.itemsize)), name


# -- pad values --------------------------------------------------------------------------------------------------------

EXACT: list[tuple[str, float]] = [("int64", 2**53 + 1), ("int64", -(2**63)), ("int64", 2**63 - 1), ("int8", -128)]
EXACT += [("uint64", 2**64 - 1), ("uint64", 2**53 + 1), ("int32", -100.0)]
EXACT += [(name, float(n)) for name in ("float16", "bfloat16", "float32", "float64") for n in ("inf", "-inf", "nan")]
OUTSIDE: list[tuple[str, float]] = [("uint8", -1), ("uint8", 256), ("int64", 0.5), ("int64", 2**63), ("uint64", -1)]
OUTSIDE += [("int32", float("nan")), ("int32", float("inf")), ("bool", 2), ("float4_e2m1fn_x2", 1)]
OUTSIDE += [("float16", 70_000.0), ("bfloat16", -1e39), ("float8_e4m3fn", 1000), ("complex64", 1e39)]
OUTSIDE += [("float64", 10**400)]
NUMBERLESS: list[tuple[str, Any]] = [(name, pad) for name in ("float32", "int64") for pad in (None, "0", [0])]


@pytest.mark.parametrize(("name", "pad_value"), EXACT)
def test_pad_values_arrive_exactly(name: str, pad_value: float) -> None:
    td = TensorDict({"x": jagged(torch.zeros(1, dtype=torch.uint8).to(getattr(torch, name)), [1, 0])}, [2])
    got = materialize(td, pad_value_dict={"x": pad_value})["x"][1, 0].item()
    assert got == pad_value or (got != got and pad_value != pad_value)


@pytest.mark.parametrize(("name", "pad_value"), OUTSIDE + NUMBERLESS)
def test_a_pad_value_outside_the_dtype_is_refused_naming_the_field(name: str, pad_value: float) -> None:
    column = ColumnLayout("ids", "jagged", name, (), np.array([2, 0]))
    td = TensorDict({"ids": jagged(some(name, 2), [2, 0])}, [2])
    error = TypeError if (name, pad_value) in NUMBERLESS else ValueError
    with pytest.raises(error, match="'ids'"):
        materialize(td, pad_value_dict={"ids": pad_value})
    with pytest.raises(error, match="'ids'"):
        PaddedBatch({"ids": pad_value}, 0).place(column)


# -- reads -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clients() -> Iterator[list[DataPlaneClient]]:
    """Of one server, by shared memory and by gRPC."""
    with ExitStack() as stack:
        address = stack.enter_context(running_server(memory_bytes=16 << 20))
        yield [stack.enter_context(connect(address, transport=way)) for way in WAYS]


def assert_read_as_materialized(
    client: DataPlaneClient, td: TensorDict, pads: Sequence[Mapping[str, float]], pad_to_seqlen: int
) -> None:
    names, ids = [*map(str, td.keys())], [f"s{row}" for row in range(td.batch_size[0])]
    client.drop_partition("p")
    client.register_partition("p", names, len(ids), ["train"])
    meta = client.put_samples(ids, "p", td)
    for pad_values in pads:
        read = {name: value for name, value in pad_values.items() if name in names}
        got = client.read_columns(meta, names, pad_value_dict=read, pad_to_seqlen=pad_to_seqlen)
        expected = materialize(td, "padded", pad_values, pad_to_seqlen)
        assert {name: content(got[name]) for name in got} == {name: content(expected[name]) for name in expected}


def content(value: Any) -> tuple[object, ...]:
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous()
        return value.dtype, tuple(value.shape), raw(value)
    return value.dtype, tuple(value.shape), value.tolist()


@st.composite
def batches(draw: st.DrawFn) -> TensorDict:
    n_rows = draw(st.integers(1, 5))
    td = TensorDict({}, [n_rows])
    for number in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(["bfloat16", "float64", "complex128"]))
        trailing = draw(st.lists(st.integers(0, 3), max_size=2))
        kind = draw(st.sampled_from(["dense", "jagged", "object"]))
        if kind == "dense":
            td[f"x{number}"] = some(name, n_rows, *trailing)
        elif kind == "jagged":
            lengths = draw(st.lists(st.integers(0, 6), min_size=n_rows, max_size=n_rows))
            td[f"x{number}"] = jagged(some(name, sum(lengths), *trailing), lengths)
        else:
            values = [draw(st.sampled_from([None, 1, "text", [1, 2]])) for _ in range(n_rows)]
            td[f"x{number}"] = NonTensorStack(*map(NonTensorData, values))
    return td


@given(
    td=batches(),
    pads=st.dictionaries(st.sampled_from(["x0", "x1", "x2"]), st.sampled_from(PADS)),
    pad_to_seqlen=st.integers(0, 8),
    way=st.integers(0, 1),
)
def test_any_batch_is_read_as_materialized(
    clients: list[DataPlaneClient], td: TensorDict, pads: dict[str, float], pad_to_seqlen: int, way: int
) -> None:
    assert_read_as_materialized(clients[way], td, [pads], pad_to_seqlen)


def test_a_batch_may_be_written_to(clients: list[DataPlaneClient]) -> None:
    client = clients[0]
    client.drop_partition("p")
    client.register_partition("p", ["x", "y"], 2, ["train"])
    meta = client.put_samples(["a", "b"], "p", {"x": jagged(torch.arange(3), [1, 2]), "y": torch.zeros(2)})
    batch = client.read_columns(meta, ["x", "y"])
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
    """White-box: our server sends none."""
    padded = PaddedBatch({}, 0)
    buffers = ReadBuffers([layout], 2, Destination(padded.place))
    stream = buffers.stream()
    stream.add(0, memoryview(data))
    stream.finish()
    with pytest.raises(InternalError, match="'x'"):
        padded.batch(buffers.columns, 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_tensors_are_padded_on_their_device() -> None:
    for name in NAMES:
        values, lengths = some(name, 9, 2), [3, 0, 1, 5]
        on_device = TensorDict({"x": jagged(values.cuda(), lengths)}, [4])
        padded = materialize(on_device, pad_to_seqlen=7)["x"]
        assert padded.device.type == "cuda"
        assert raw(padded.cpu()) == padded_bytes(values, lengths, 7, bytes(values.dtype.itemsize)), name

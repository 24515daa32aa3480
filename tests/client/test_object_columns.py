"""Object fields: what comes back equals what went in, type for type, or is refused before it is sent."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgpack
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict

from dataplane_client.columns_layout import WireColumn
from dataplane_client.wire_columns import decode_columns, encode_columns

VALUES = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    0.1,
    float("inf"),
    "",
    "h\u00e9",
    b"\x00\xff",
    [],
    [1, [2, None], {"a": []}],
    {},
    {"k": {"n": [1.5, b"x"]}, "": None},
]


class Colour(enum.IntEnum):
    RED = 1


def objects(values: Sequence[object]) -> npt.NDArray[np.object_]:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def stack(values: Sequence[object]) -> NonTensorStack:
    return NonTensorStack(*map(NonTensorData, values))


def round_trip(td: TensorDict | Mapping[str, object], n_rows: int) -> TensorDict:
    return decode_columns(encode_columns(td), n_rows)


def typed(value: object) -> object:
    """The value with the type of every part spelt out, so that 1 and True differ."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value), value


@pytest.mark.parametrize(
    "leaf",
    [stack, objects, lambda values: NonTensorData(objects(values), batch_size=[len(values)])],
    ids=["stack", "object array", "non-tensor data"],
)
@pytest.mark.parametrize("values", [VALUES, VALUES[:1], []], ids=["all", "one row", "no rows"])
def test_values_come_back_equal_and_of_the_same_type(
    values: Sequence[object], leaf: Callable[[Sequence[object]], object]
) -> None:
    td = round_trip({"o": leaf(values)}, len(values))
    got = td.get("o")
    assert isinstance(got, NonTensorStack if values else NonTensorData)
    assert [typed(value) for value in got.tolist()] == [typed(value) for value in td["o"]] == list(map(typed, values))


def test_object_array_of_a_packed_tensordict_comes_back_row_by_row() -> None:
    got = round_trip(TensorDict({"o": objects(VALUES)}, [len(VALUES)]), len(VALUES))
    assert got.get("o").tolist() == VALUES


@pytest.mark.parametrize("payload", ["hi", None, [1, 2], {"a": 1}], ids=str)
def test_one_payload_without_rows_goes_to_every_row(payload: object) -> None:
    assert round_trip(TensorDict({"o": NonTensorData(payload)}, [3]), 3).get("o").tolist() == [payload] * 3
    assert round_trip({"x": torch.ones(3), "o": NonTensorData(payload)}, 3).get("o").tolist() == [payload] * 3


def test_lists_that_a_tensordict_stacks_come_back_as_lists() -> None:
    assert round_trip(TensorDict({"o": [["a", "b"], ["c", "d"]]}, [2]), 2).get("o").tolist() == [["a", "b"], ["c", "d"]]


def test_thousands_of_rows_come_back() -> None:
    values = [{"i": i, "text": "x" * (i % 7)} for i in range(5000)]
    assert round_trip({"o": objects(values)}, 5000).get("o").tolist() == values


def test_objects_stay_row_aligned_when_the_batch_is_indexed() -> None:
    td = round_trip({"o": objects(VALUES), "i": torch.arange(len(VALUES))}, len(VALUES))
    for i, value in enumerate(VALUES):
        assert td[i]["o"] == value
    picked = td[torch.tensor([3, 11])]
    assert picked["i"].tolist() == [3, 11]
    assert picked.get("o").tolist() == [VALUES[3], VALUES[11]]
    assert td[2:4].get("o").tolist() == VALUES[2:4]


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(values=st.lists(JSON_LIKE, max_size=6))
@settings(max_examples=100, deadline=None)
def test_any_values_come_back_equal_and_of_the_same_type(values: Sequence[object]) -> None:
    got = round_trip({"o": objects(values)}, len(values)).get("o").tolist()
    assert [typed(value) for value in got] == [typed(value) for value in values]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ((1, 2), "tuple"),
        ([{"a": (1,)}], "tuple"),
        (np.float64(1), "numpy.float64"),
        (np.int64(1), "numpy.int64"),
        (np.bool_(True), "numpy.bool"),
        ([np.ones(2)], "numpy.ndarray"),
        (torch.ones(1), "torch.Tensor"),
        (bytearray(b"x"), "bytearray"),
        (memoryview(b"x"), "memoryview"),
        ({1, 2}, "set"),
        (object(), "object"),
        (Colour.RED, "Colour"),
        (OrderedDict(a=1), "collections.OrderedDict"),
        (msgpack.Timestamp(1), "Timestamp"),
        ({1: 2}, "dict key of type int"),
        ({b"a": 2}, "dict key of type bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_type_that_would_not_come_back_is_refused_naming_field_row_and_type(value: object, found: str) -> None:
    with pytest.raises(TypeError, match=rf"'o', row 2.*{found}"):
        encode_columns({"o": objects(["a", "b", value])})


def nested_lists(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [2**64, -(2**63) - 1, "\ud800", nested_lists(128)], ids=["big", "small", "text", "deep"]
)
def test_value_msgpack_cannot_hold_is_refused_naming_field_and_row(value: object) -> None:
    with pytest.raises(ValueError, match="'o', row 1"):
        encode_columns({"o": objects([0, value])})


def test_list_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(ValueError, match="'o', row 0: nested deeper than 128"):
        encode_columns({"o": objects([value])})


def test_deepest_value_comes_back() -> None:
    value = nested_lists(127)
    assert round_trip({"o": objects([value])}, 1).get("o").tolist() == [value]


def test_payload_that_is_a_numeric_array_is_refused() -> None:
    with pytest.raises(TypeError, match=r"'o', row 0.*numpy\.ndarray"):
        encode_columns({"x": torch.ones(2), "o": NonTensorData(np.ones(2))})


def test_object_array_with_several_values_a_row_is_refused_naming_its_shape() -> None:
    with pytest.raises(ValueError, match=r"'o'.*\(2, 2\)"):
        encode_columns({"o": np.array([["a", "b"], ["c", "d"]], object)})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        b"\xa1",
        b"\xa1\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\x01\x01",
        b"\x81\x90\x01",
        b"\x81\xc4\x01k\x01",
        b"\xd4\x03x",
        msgpack.packb(msgpack.Timestamp(1)),
        b"\x91" * 129 + b"\x01",
        b"\x91" * 5000,
    ],
    ids=[
        "empty", "reserved", "two values", "cut short", "not utf-8", "array too long", "map too long", "bytes too long",
        "int key", "list key", "bytes key", "extension", "timestamp", "too deep", "far too deep",
    ],
)  # fmt: skip
def test_bytes_that_are_no_msgpack_value_are_refused_naming_field_and_row(data: bytes) -> None:
    values = memoryview(bytearray(b"\x01" + data))
    with pytest.raises(ValueError, match="'o', row 1: not valid msgpack"):
        decode_columns([WireColumn("o", "object", "", (), np.array([1, len(data)]), values)], 2)

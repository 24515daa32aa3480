"""Object fields: what comes back equals what went in, type for type, or is refused before it is sent."""

from __future__ import annotations

import contextlib
import enum
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict
from tests.tensors import objects

from dataplane_client._values.columns_layout import WireColumn
from dataplane_client._values.wire_columns import decode_columns, decode_leaves, encode_columns

VALUES: list[object] = [None, True, 0, -(2**63), 2**64 - 1, 0.1, float("inf"), "", "h\u00e9", b"\x00\xff"]
VALUES += [[], [1, [2, None], {"a": []}], {}, {"k": {"n": [1.5, b"x"]}, "": None}, (), (1, ("a", [()]))]
VALUES += [{1: "a", -(2**63): {"1": (2,)}}, np.float64(0.1), np.bool_(True), np.str_("h\u00e9\0"), np.bytes_(b"\xff")]
VALUES += [np.arange(6, dtype=np.int16).reshape(2, 3).T, np.array(0.5), np.zeros((0, 3), bool)]
VALUES += [np.array(["ab", "\U0001f600"]), np.array([b"ab", b""]), torch.arange(6).reshape(2, 3).T]
VALUES += [torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor(True)]
VALUES += [[{"pixels": torch.ones(2, 3), "grid": (np.int64(1), [np.ones(2, np.float16)])}]]


class Colour(enum.IntEnum):
    RED = 1


def stack(values: Sequence[object]) -> NonTensorStack:
    return NonTensorStack(*map(NonTensorData, values))


def round_trip(td: TensorDict | Mapping[str, object], n_rows: int) -> TensorDict:
    return decode_columns(encode_columns(td), n_rows)


def typed(value: object) -> object:
    """The value with the type of every part spelt out, so that 1 and True differ."""
    if isinstance(value, (list, tuple)):
        return type(value), [typed(item) for item in value]
    if isinstance(value, dict):
        return {(type(key), key): typed(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, tuple(value.shape), value.tolist()
    return type(value), value


@pytest.mark.parametrize(
    "rows", [({}, 3, "a"), (b"", [1, 2], None), (("a",), (1, 2), 1.5), ([torch.ones(2)], 1, None)], ids=str
)
def test_one_row_that_can_only_be_an_object_makes_all_rows_objects_wherever_it_is(rows: tuple[object, ...]) -> None:
    for ordered in permutations(rows):
        assert typed(round_trip({"o": list(ordered)}, 3).get("o").tolist()) == typed(list(ordered))


@pytest.mark.parametrize(
    "rows", [("a", 1, 2), (None, 1, 2), (None, [1], []), (1, [], 2), (torch.ones(2), [1], None)], ids=str
)
def test_numbers_beside_rows_that_need_not_be_objects_are_refused_in_any_order(rows: tuple[object, ...]) -> None:
    for ordered in permutations(rows):
        with pytest.raises(ValueError, match=r"'o', row [0-2]"):
            encode_columns({"o": list(ordered)})


@pytest.mark.parametrize("payload", ["hi", None, [1, 2], {"a": 1}], ids=str)
def test_one_payload_without_rows_goes_to_every_row(payload: object) -> None:
    assert round_trip(TensorDict({"o": NonTensorData(payload)}, [3]), 3).get("o").tolist() == [payload] * 3
    assert round_trip({"x": torch.ones(3), "o": NonTensorData(payload)}, 3).get("o").tolist() == [payload] * 3


def test_an_array_of_foreign_byte_order_comes_back_in_the_order_of_the_wire() -> None:
    (got,) = round_trip({"o": stack([np.arange(3, dtype=">i4")])}, 1).get("o").tolist()
    assert (got.tolist(), got.dtype) == ([0, 1, 2], np.dtype("<i4"))


def test_an_array_of_texts_of_more_than_ten_million_bytes_comes_back() -> None:
    (got,) = round_trip({"o": stack([np.array([b"x" * 10_000_000])])}, 1).get("o").tolist()
    assert (got.dtype, len(got[0])) == (np.dtype("S10000000"), 10_000_000)


def nested_lists(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from(VALUES),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(-(2**63), 2**63), inner, max_size=4)
    ),
    max_leaves=12,
)


LEAVES: list[Callable[[Sequence[object]], object]] = [
    stack,
    lambda values: objects(*values),
    lambda values: NonTensorData(objects(*values), batch_size=[len(values)]),
]


@given(values=st.lists(JSON_LIKE, max_size=6), leaf=st.sampled_from(LEAVES))
@example(values=VALUES, leaf=LEAVES[1])
@example(values=[nested_lists(127)], leaf=stack)
@settings(max_examples=100, deadline=None)
def test_values_come_back_equal_and_of_the_same_type(
    values: Sequence[object], leaf: Callable[[Sequence[object]], object]
) -> None:
    td = round_trip({"o": leaf(values)}, len(values))
    got = td.get("o")
    assert isinstance(got, NonTensorStack if values else NonTensorData)
    assert [typed(value) for value in got.tolist()] == [typed(value) for value in td["o"]] == list(map(typed, values))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ((1, {2}), "set"),
        (np.datetime64(1, "s"), "numpy.datetime64"),
        (np.longdouble(1), "numpy.longdouble"),
        (np.array([{}]), "numpy.ndarray of object"),
        (np.ma.array([1]), "MaskedArray"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.ones(2, device="meta"), "meta"),
        (torch.zeros(2, dtype=torch.uint8).view(torch.bits8), "bits8"),
        (bytearray(b"x"), "bytearray"),
        (memoryview(b"x"), "memoryview"),
        ({1, 2}, "set"),
        (object(), "object"),
        (Colour.RED, "Colour"),
        (OrderedDict(a=1), "collections.OrderedDict"),
        (msgpack.Timestamp(1), "Timestamp"),
        ({True: 2}, "dict key of type bool"),
        ({(1,): 2}, "dict key of type tuple"),
        ({b"a": 2}, "dict key of type bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_type_that_would_not_come_back_is_refused_naming_field_row_and_type(value: object, found: str) -> None:
    with pytest.raises(TypeError, match=rf"'o', row 2.*{found}"):
        encode_columns({"o": objects("a", "b", value)})


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (2**64, ""),
        (-(2**63) - 1, ""),
        ("\ud800", ""),
        (nested_lists(128), ""),
        (ENDLESS, ": nested deeper than 128"),
        ([torch.tensor([1, 255], dtype=torch.uint8).view(torch.bool)], ": a byte of a bool must be 0 or 1"),
        ([np.array([1, 255], np.uint8).view(np.bool_)], ": a byte of a bool must be 0 or 1"),
        ([np.array([0x110000], np.uint32).view("<U1")], ": a character outside Unicode"),
    ],
    ids=["big", "small", "text", "deep", "endless", "bools of torch", "bools of NumPy", "characters"],
)
def test_value_that_could_not_be_read_is_refused_naming_field_and_row(value: object, rule: str) -> None:
    with pytest.raises(ValueError, match=f"'o', row 1{rule}"):
        encode_columns({"o": objects(0, value)})
    with pytest.raises(ValueError, match=r"'o'.*\(2, 2\)"):
        encode_columns({"o": np.array([["a", "b"], ["c", "d"]], object)})


@pytest.mark.parametrize("payload", [np.ones(2), torch.ones(2)], ids=["array", "tensor"])
def test_payload_that_may_be_one_value_or_rows_is_refused(payload: object) -> None:
    with pytest.raises(TypeError, match=r"'o'.*NonTensorData.*NonTensorStack"):
        encode_columns({"x": torch.ones(2), "o": NonTensorData(payload)})


def test_arrays_and_tensors_that_come_back_can_be_written_to() -> None:
    array, tensor = round_trip({"o": stack([np.zeros(2), torch.zeros(2)])}, 2).get("o").tolist()
    array[0], tensor[0] = 1, 1
    assert (array.tolist(), tensor.tolist()) == ([1, 0], [1, 0])


@pytest.mark.parametrize("value", [[[]] * 100_000, {"a": ((),) * 100_000}], ids=["lists", "tuples"])
def test_row_of_more_containers_than_its_bytes_allow_is_refused_on_both_ways(value: object) -> None:
    rule = "'o', row 0.* bytes.* 256"
    with pytest.raises(ValueError, match=rule):
        encode_columns({"o": objects(value)})
    data = bytearray(msgpack.packb(value))
    with pytest.raises(ValueError, match=rule):
        decode_columns([WireColumn("o", "object", "", (), np.array([len(data)]), memoryview(data))], 1)


@pytest.mark.parametrize(
    "value", [[-7] * 100_000, ["ab"] * 50_000, dict.fromkeys(range(50000), -7), [(-7,) * 9] * 10_000, [[]] * 100_000],
    ids=["numbers", "text", "dict", "tuples", "empty lists"],
)  # fmt: skip
def test_decoding_takes_at_most_fifty_times_the_bytes_and_20_kb(value: object) -> None:
    data = bytearray(msgpack.packb(value))
    column = WireColumn("o", "object", "", (), np.array([len(data)]), memoryview(data))
    tracemalloc.start()
    with contextlib.suppress(ValueError):
        decode_leaves([column], 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * len(data) + 20_000


def mark(code: int, data: bytes = b"") -> msgpack.ExtType:
    return msgpack.ExtType(code, data)


MARKED: list[object] = [mark(1), [1, mark(1)], {"a": mark(1)}, {mark(1): 1}, [mark(0)], [mark(6)], [mark(1, b"x"), 1]]
MARKED += [[mark(2)], [mark(2), "O", b"", 0], [mark(2), "i4,i4", b"", 0], [mark(2), "int32", b"1234", 2]]
MARKED += [[mark(2), "int32", b"1234", -1], [mark(2), "int32", b"1234", True], [mark(2), "int32", b"", 0, 2**62]]
MARKED += [[mark(2), "int32", b"1234", *[1] * 33], [mark(2), "U9999999999", b"", 0], [mark(2), "U0", b"", 3]]
MARKED += [[mark(2), "U1", b"\xff\xff\xff\xff", 1], [mark(2), "bool", b"\x02", 1], [mark(2), ["int32"], b"", 0]]
MARKED += [[mark(3), "int32", b"123"], [mark(3), "O", b"123"], [mark(3), "U", b"123"], [mark(3), ["int32"], b"1234"]]
MARKED += [[mark(4), "qint8", b"", 0], [mark(4), "bool", b"\x02", 1], [mark(4), "int32", b"", 0, 2**62]]
MARKED += [[mark(5)], [mark(5), "n"], [mark(5), 1, b""], [mark(5), "n", "x"], [mark(5), "n", b"", 0]]
MARKED += [[mark(5), "PIL.Image.Image", data] for data in (b"", b"RGB 1 1\n", b"RGB 9999999 9999999\n", b"P 1 1\n0")]
MARKED += [[mark(5), "PIL.Image.Image", b"L -1 -1\n0"]]
"""Marked arrays that no value is packed as."""


NO_MSGPACK = {
    "empty": b"", "reserved": b"\xc1", "two values": b"\x01\x02", "cut short": b"\xa1", "not utf-8": b"\xa1\xff",
    "array too long": b"\xdd\xff\xff\xff\xff", "map too long": b"\xdf\xff\xff\xff\xff",
    "bytes too long": b"\xc6\xff\xff\xff\xff", "bool key": b"\x81\xc2\x01", "list key": b"\x81\x90\x01",
    "bytes key": b"\x81\xc4\x01k\x01", "extension": b"\xd4\x03x", "timestamp": msgpack.packb(msgpack.Timestamp(1)),
    "too deep": b"\x91" * 129 + b"\x01", "far too deep": b"\x91" * 5000,
    **{str(number): msgpack.packb(value) for number, value in enumerate(MARKED)},
}  # fmt: skip


@pytest.mark.parametrize("data", NO_MSGPACK.values(), ids=NO_MSGPACK)
def test_bytes_that_are_no_msgpack_value_are_refused_naming_field_and_row(data: bytes) -> None:
    values = memoryview(bytearray(b"\x01" + data))
    with pytest.raises(ValueError, match="'o', row 1"):
        decode_columns([WireColumn("o", "object", "", (), np.array([1, len(data)]), values)], 2)

"""What does not travel, and columns that contradict themselves: the error names the field and the rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict, lazy_stack
from torch.nested import as_nested_tensor, nested_tensor_from_jagged

from dataplane_client._values.columns_layout import WireColumn
from dataplane_client._values.wire_columns import decode_columns, encode_columns

LEAVES: dict[str, tuple[object, str]] = {
    "tensordict": (TensorDict({"x": torch.ones(2)}, [2]), "TensorDict"),
    "str": ("ab", "str"),
    "none": (None, "NoneType"),
    "set": ({1, 2}, "set"),
    "ndarray": (np.zeros(2, "M8[s]"), "ndarray"),
    "masked": (np.ma.array([1.0, 2.0], mask=[False, True]), "masked"),
    "masked rows": ([np.ma.array([1.0, 2.0], mask=[False, True])] * 2, "row 0.*masked"),
    "sparse": (torch.eye(2).to_sparse(), "sparse"),
    "meta": (torch.ones(2, device="meta"), "meta"),
    "meta rows": ([torch.ones(2, device="meta")] * 2, "meta"),
    "bits": (torch.zeros(2, dtype=torch.uint8).view(torch.bits8), "torch.bits8"),
    "shell": (torch.zeros(2, dtype=torch.uint8).view(vars(torch)["uint4"]), "torch.uint4"),
}


@pytest.mark.parametrize(("leaf", "found"), LEAVES.values(), ids=LEAVES)
def test_leaf_that_does_not_travel_is_refused_naming_field_and_type(leaf: object, found: str) -> None:
    with pytest.raises(TypeError, match=rf"'bad'.*{found}"):
        encode_columns({"ok": torch.ones(2), "bad": leaf})


THREE = np.array(["a", "b", "c"], object)
BOOL_OF_2 = torch.tensor([0, 2], dtype=torch.uint8).view(torch.bool)
RAGGED_IN_DIM_2 = as_nested_tensor([torch.zeros(2, 3), torch.zeros(2, 5)], layout=torch.jagged)
OUTSIDE = nested_tensor_from_jagged(torch.arange(5), torch.tensor([0, 2, 9]), min_seqlen=2, max_seqlen=7)
REFUSED: dict[str, tuple[TensorDict | Mapping[str, object], type[Exception], str]] = {
    "a nested TensorDict": (TensorDict({"inner": {"x": torch.ones(2)}}, [2]), TypeError, r"'inner'.*TensorDict"),
    "rows, dense": ({"ok": torch.ones(2), "bad": torch.ones(3)}, ValueError, r"'bad'.*3.*2 rows"),
    "rows, jagged": (
        {"ok": torch.ones(2), "bad": as_nested_tensor([torch.ones(1)] * 3, layout=torch.jagged)},
        ValueError,
        r"'bad'.*3.*2 rows",
    ),
    "rows, objects": ({"ok": torch.ones(2), "bad": THREE}, ValueError, r"'bad'.*3.*2 rows"),
    "rows, non-tensor data": ({"ok": torch.ones(2), "bad": NonTensorData(THREE)}, ValueError, r"'bad'.*3.*2 rows"),
    "0-d": ({"ok": torch.ones(2), "bad": torch.tensor(1.0)}, ValueError, "'bad'.*0-d"),
    "a TensorDict that does not say its rows": (TensorDict({"x": torch.ones(2)}, []), ValueError, "rows"),
    "a mapping that does not say its rows": ({"o": NonTensorData("hi")}, ValueError, "rows"),
    "ragged in dim 2": ({"j": RAGGED_IN_DIM_2}, ValueError, "'j': ragged in dim 2"),
    "a bool of 2": ({"mask": BOOL_OF_2}, ValueError, r"'mask'.*byte"),
    "offsets outside the values": ({"j": OUTSIDE}, ValueError, "'j', row 1"),
    "entries without numbers beside others": (
        {"j": [[[], []], [[1, 2], [3, 4]]]},
        ValueError,
        r"'j', row 1: shape \(2, 2\), but row 0 has \(2, 0\)",
    ),
}


@pytest.mark.parametrize(("fields", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_fields_that_do_not_fit_are_refused_naming_field_and_rule(
    fields: TensorDict | Mapping[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        encode_columns(fields)


def test_a_field_that_some_rows_of_a_lazy_stack_lack_is_refused() -> None:
    rows = [TensorDict({"x": torch.ones(2)}, []), TensorDict({"x": torch.ones(2), "y": torch.ones(2)}, [])]
    with pytest.raises(ValueError, match="'y': some rows lack it"):
        encode_columns(lazy_stack(rows))


DENSE = WireColumn("x", "dense", "int32", (2,), None, memoryview(bytearray(24)))
JAGGED = WireColumn("x", "jagged", "int32", (2,), np.array([1, 0, 2]), memoryview(bytearray(24)))
OBJECT = WireColumn("x", "object", "", (), np.array([1, 1, 1]), memoryview(bytearray(b"\x01\x02\x03")))


@pytest.mark.parametrize(
    ("column", "change", "rule"),
    [
        (DENSE, {"values": memoryview(bytearray(23))}, "23 bytes"),
        (DENSE, {"values": memoryview(bytearray(32))}, "32 bytes"),
        (DENSE, {"values": memoryview(bytearray(0))}, "but 0 bytes"),
        (DENSE, {"row_shape": (3,)}, "12 bytes"),
        (DENSE, {"row_shape": (-1, -2)}, "negative size"),
        (DENSE, {"row_shape": (0, 2**62), "values": memoryview(b"")}, "too large"),
        (DENSE, {"dtype": "qint8"}, "'qint8'"),
        (DENSE, {"dtype": ""}, "dtype ''"),
        (DENSE, {"kind": "sparse"}, "'sparse'"),
        (JAGGED, {"lengths": None}, "no lengths"),
        (JAGGED, {"lengths": np.array([1, 2])}, "3 rows"),
        (JAGGED, {"lengths": np.array([[1, 0, 2]])}, "3 rows"),
        (JAGGED, {"lengths": np.array([1, -1, 3])}, "row 1: negative length -1"),
        (JAGGED, {"lengths": np.array([1, 1, 2])}, "4 entries"),
        (JAGGED, {"lengths": np.array([2**62, 2**62, 2**63 - 1])}, "entries of 8 bytes"),
        (JAGGED, {"lengths": np.array([2**62] * 3), "row_shape": (0,), "values": memoryview(b"")}, "too large"),
        (DENSE, {"dtype": "bool", "values": memoryview(bytearray(b"\0\1\2\0\1\0"))}, ".*byte"),
        (OBJECT, {"lengths": None}, "no lengths"),
        (OBJECT, {"lengths": np.array([1, 1, 2])}, "4 entries"),
        (OBJECT, {"lengths": np.array([3, 1, -1])}, "row 2: negative length"),
    ],
)
def test_column_that_contradicts_itself_is_refused_naming_field_and_rule(
    column: WireColumn, change: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ValueError, match=rf"'x'.*{rule}"):
        decode_columns([dataclasses.replace(column, **change)], 3)


def test_a_field_that_comes_twice_and_a_negative_number_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="'x'"):
        decode_columns([DENSE, JAGGED], 3)
    with pytest.raises(ValueError, match="got -1"):
        decode_columns([], -1)

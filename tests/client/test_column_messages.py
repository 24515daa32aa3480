"""Columns to messages and back, without a server and without tensors."""

from __future__ import annotations

import numpy as np
import pytest

from dataplane_client._column_messages import column_layouts, column_message, int64_bytes, int64s
from dataplane_client.columns_layout import WireColumn
from dataplane_client.descriptions import partition_description
from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb

LENGTHS = np.array([2, 0, 1], np.int64)
COLUMNS = [
    pytest.param(
        WireColumn("x", "dense", "bfloat16", (4, 2), None, memoryview(b"")),
        pb.FIELD_KIND_DENSE,
        pb.DATA_TYPE_BFLOAT16,
        id="dense",
    ),
    pytest.param(
        WireColumn("x", "jagged", "bool", (3,), LENGTHS, memoryview(b"")),
        pb.FIELD_KIND_JAGGED,
        pb.DATA_TYPE_BOOL,
        id="jagged",
    ),
    pytest.param(WireColumn("x", "object", "", (), LENGTHS, memoryview(b"")), pb.FIELD_KIND_OBJECT, 0, id="object"),
]


@pytest.mark.parametrize(("sent", "kind", "data_type"), COLUMNS)
def test_a_column_is_described_by(sent: WireColumn, kind: int, data_type: int) -> None:
    message = column_message(sent)
    assert (message.name, message.kind, message.data_type) == ("x", kind, data_type)
    assert tuple(message.row_shape) == sent.row_shape
    assert int64s(message.row_lengths).tolist() == ([] if sent.lengths is None else [2, 0, 1])


@pytest.mark.parametrize(("sent", "kind", "data_type"), COLUMNS)
def test_a_layout_is_what_its_message_describes(sent: WireColumn, kind: int, data_type: int) -> None:
    request = pb.ReadColumnsRequest(sample_ids=["a", "b", "c"], fields=["x"])
    (layout,) = column_layouts(pb.ReadColumnsHeader(columns=[column_message(sent)]), request)
    assert (layout.name, layout.kind, layout.dtype, layout.row_shape) == ("x", sent.kind, sent.dtype, sent.row_shape)
    assert (None if layout.lengths is None else layout.lengths.tolist()) == (
        None if sent.lengths is None else [2, 0, 1]
    )


def test_lengths_are_little_endian_int64() -> None:
    assert int64_bytes([1, -1]) == b"\x01" + b"\x00" * 7 + b"\xff" * 8
    assert int64s(b"\x00\x01" + b"\x00" * 6).tolist() == [256]


def test_a_field_that_nobody_put_has_no_kind() -> None:
    description = partition_description(pb.Partition(fields=[pb.FieldDescription(name="x")]))
    assert [(field.kind, field.dtype, field.row_shape) for field in description.fields] == [(None, "", ())]


REQUEST = pb.ReadColumnsRequest(sample_ids=["a", "b"], fields=["x"])


def jagged_bytes(row_lengths: bytes) -> pb.Column:
    return pb.Column(name="x", kind=pb.FIELD_KIND_JAGGED, data_type=pb.DATA_TYPE_INT8, row_lengths=row_lengths)


@pytest.mark.parametrize(
    "message",
    [
        pb.Column(name="x", data_type=pb.DATA_TYPE_INT8),
        pb.Column(name="x", kind=pb.FIELD_KIND_DENSE),
        pb.Column(name="x", kind=pb.FIELD_KIND_JAGGED, row_lengths=int64_bytes([1, 1])),
        jagged_bytes(int64_bytes([1])),
        jagged_bytes(b""),
        jagged_bytes(int64_bytes([1, 1, 1])),
        jagged_bytes(int64_bytes([2, -1])),
        jagged_bytes(int64_bytes([2, 1])[:-1]),
    ],
    ids=[
        "no kind",
        "no element type",
        "jagged without element type",
        "too few lengths",
        "no lengths",
        "too many lengths",
        "a negative length",
        "half a length",
    ],
)
def test_a_column_that_contradicts_itself_is_refused(message: pb.Column) -> None:
    with pytest.raises(InternalError, match="'x'"):
        column_layouts(pb.ReadColumnsHeader(columns=[message]), REQUEST)


@pytest.mark.parametrize("names", [[], ["y"], ["x", "x"], ["x", "y"]], ids=str)
def test_columns_that_were_not_asked_for_are_refused(names: list[str]) -> None:
    columns = [pb.Column(name=name, kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_INT8) for name in names]
    with pytest.raises(InternalError, match="x"):
        column_layouts(pb.ReadColumnsHeader(columns=columns), REQUEST)

"""Columns to messages and back, without a server and without tensors.

White-box: our server sends no contradictions.
"""

from __future__ import annotations

import numpy as np
import pytest

from dataplane_client._values.column_messages import column_layouts, column_message, int64_bytes, int64s
from dataplane_client._values.columns_layout import WireColumn
from dataplane_client.answers.descriptions import partition_description
from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb

LENGTHS = np.array([2, 0, 1], np.int64)
NONE = memoryview(b"")
COLUMNS = [
    (WireColumn("x", "dense", "bfloat16", (4, 2), None, NONE), pb.FIELD_KIND_DENSE, pb.DATA_TYPE_BFLOAT16),
    (WireColumn("x", "jagged", "bool", (3,), LENGTHS, NONE), pb.FIELD_KIND_JAGGED, pb.DATA_TYPE_BOOL),
    (WireColumn("x", "object", "", (), LENGTHS, NONE), pb.FIELD_KIND_OBJECT, 0),
]


@pytest.mark.parametrize(("sent", "kind", "data_type"), COLUMNS, ids=["dense", "jagged", "object"])
def test_a_layout_is_what_its_message_describes(sent: WireColumn, kind: int, data_type: int) -> None:
    message = column_message(sent)
    lengths = [] if sent.lengths is None else [2, 0, 1]
    assert (message.name, message.kind, message.data_type) == ("x", kind, data_type)
    assert (tuple(message.row_shape), int64s(message.row_lengths).tolist()) == (sent.row_shape, lengths)
    request = pb.ReadColumnsRequest(sample_ids=["a", "b", "c"], fields=["x"])
    (layout,) = column_layouts(pb.ReadColumnsHeader(columns=[message]), request)
    assert (layout.name, layout.kind, layout.dtype, layout.row_shape) == ("x", sent.kind, sent.dtype, sent.row_shape)
    assert (None if layout.lengths is None else layout.lengths.tolist()) == (lengths or None)


def test_lengths_are_little_endian_int64() -> None:
    assert int64_bytes([1, -1]) == b"\x01" + b"\x00" * 7 + b"\xff" * 8
    assert int64s(b"\x00\x01" + b"\x00" * 6).tolist() == [256]


def test_a_field_that_nobody_put_has_no_kind() -> None:
    description = partition_description(pb.Partition(fields=[pb.FieldDescription(name="x")]))
    assert [(field.kind, field.dtype, field.row_shape) for field in description.fields] == [(None, "", ())]


REQUEST = pb.ReadColumnsRequest(sample_ids=["a", "b"], fields=["x"])


def jagged_bytes(row_lengths: bytes) -> pb.Column:
    return pb.Column(name="x", kind=pb.FIELD_KIND_JAGGED, data_type=pb.DATA_TYPE_INT8, row_lengths=row_lengths)


CONTRADICTIONS = {
    "no kind": pb.Column(name="x", data_type=pb.DATA_TYPE_INT8),
    "no element type": pb.Column(name="x", kind=pb.FIELD_KIND_DENSE),
    "jagged, no element type": pb.Column(name="x", kind=pb.FIELD_KIND_JAGGED, row_lengths=int64_bytes([1, 1])),
    "too few lengths": jagged_bytes(int64_bytes([1])),
    "no lengths": jagged_bytes(b""),
    "too many lengths": jagged_bytes(int64_bytes([1, 1, 1])),
    "a negative length": jagged_bytes(int64_bytes([2, -1])),
    "half a length": jagged_bytes(int64_bytes([2, 1])[:-1]),
}


@pytest.mark.parametrize("message", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_column_that_contradicts_itself_is_refused(message: pb.Column) -> None:
    with pytest.raises(InternalError, match="'x'"):
        column_layouts(pb.ReadColumnsHeader(columns=[message]), REQUEST)


@pytest.mark.parametrize("names", [[], ["y"], ["x", "x"], ["x", "y"]], ids=str)
def test_columns_that_were_not_asked_for_are_refused(names: list[str]) -> None:
    columns = [pb.Column(name=name, kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_INT8) for name in names]
    with pytest.raises(InternalError, match="x"):
        column_layouts(pb.ReadColumnsHeader(columns=columns), REQUEST)

"""Columns to messages and back, without a server and without tensors.

White-box: our server sends no contradictions.
"""

from __future__ import annotations

import pytest

from dataplane_client._common.arrays import int64_bytes
from dataplane_client._values.column_messages import column_layouts
from dataplane_client.errors import InternalError
from dataplane_client.records.descriptions import partition_description
from rl_dataplane.v1 import data_plane_pb2 as pb


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

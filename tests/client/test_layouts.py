"""Columns to messages, values to chunks, and chunks back to columns, without a server and without tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane_client._layouts import (
    ColumnAssembler,
    chunks,
    column_message,
    commit_frames,
    field_layout,
    int64_bytes,
    int64s,
    put_frames,
)
from dataplane_client.columns_layout import WireColumn
from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb


def column(data: bytes, name: str = "x") -> WireColumn:
    """One dense uint8 row that holds data."""
    return WireColumn(name, "dense", "uint8", (len(data),), None, memoryview(data))


def read_header(columns: Sequence[WireColumn]) -> pb.ReadColumnsHeader:
    return pb.ReadColumnsHeader(columns=[column_message(c) for c in columns], sequence_lengths=int64_bytes([5]))


# -- chunks ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 50))
def test_chunks_continue_one_another_and_hold_all_bytes_in_order(values: list[bytes], chunk_bytes: int) -> None:
    sent = list(chunks([column(data) for data in values], chunk_bytes))
    whole = b"".join(values)
    assert b"".join(chunk.data for chunk in sent) == whole
    assert [chunk.offset_bytes for chunk in sent] == list(range(0, len(whole), chunk_bytes))
    assert all(len(chunk.data) == chunk_bytes for chunk in sent[:-1])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 50))
def test_an_assembler_puts_chunks_of_any_size_back_into_columns(values: list[bytes], chunk_bytes: int) -> None:
    columns = [column(data, f"x{number}") for number, data in enumerate(values)]
    assembler = ColumnAssembler(read_header(columns), 1)
    for chunk in chunks(columns, chunk_bytes):
        assembler.add(chunk)
    assert [bytes(got.values) for got in assembler.finish()] == values
    assert assembler.sequence_lengths.tolist() == [5]


def test_the_first_chunk_rides_with_the_header() -> None:
    sent = list(put_frames(pb.PutSamplesHeader(request_id="r"), chunks([column(b"abcde")], 2)))
    assert [frame.HasField("header") for frame in sent] == [True, False, False]
    assert [frame.chunk.data for frame in sent] == [b"ab", b"cd", b"e"]


def test_a_put_without_values_is_one_frame_without_chunk() -> None:
    (frame,) = put_frames(pb.PutSamplesHeader(request_id="r"), chunks([column(b"")], 2))
    assert frame.header.request_id == "r"
    assert not frame.HasField("chunk")


def test_a_commit_travels_like_a_put() -> None:
    sent = list(commit_frames(pb.CommitClaimHeader(claim_id="c"), chunks([column(b"abc")], 2)))
    assert [frame.header.claim_id for frame in sent] == ["c", ""]
    assert [frame.chunk.data for frame in sent] == [b"ab", b"c"]


# -- columns -----------------------------------------------------------------------------------------------------------

LENGTHS = np.array([2, 0, 1], np.int64)
NONE = memoryview(b"")


@pytest.mark.parametrize(
    ("sent", "kind", "data_type"),
    [
        (
            WireColumn("x", "dense", "bfloat16", (4, 2), None, memoryview(b"")),
            pb.FIELD_KIND_DENSE,
            pb.DATA_TYPE_BFLOAT16,
        ),
        (WireColumn("x", "jagged", "bool", (3,), LENGTHS, memoryview(b"")), pb.FIELD_KIND_JAGGED, pb.DATA_TYPE_BOOL),
        (WireColumn("x", "object", "", (), LENGTHS, memoryview(b"")), pb.FIELD_KIND_OBJECT, 0),
    ],
    ids=["dense", "jagged", "object"],
)
def test_a_column_is_described_by(sent: WireColumn, kind: int, data_type: int) -> None:
    message = column_message(sent)
    assert (message.name, message.kind, message.data_type) == ("x", kind, data_type)
    assert tuple(message.row_shape) == sent.row_shape
    assert int64s(message.row_lengths).tolist() == ([] if sent.lengths is None else [2, 0, 1])


def test_lengths_are_little_endian_int64() -> None:
    assert int64_bytes([1, -1]) == b"\x01" + b"\x00" * 7 + b"\xff" * 8
    assert int64s(b"\x00\x01" + b"\x00" * 6).tolist() == [256]


def test_a_field_that_nobody_put_has_no_kind() -> None:
    assert field_layout(pb.FieldDescription(name="x")) == (None, "", ())


# -- streams that break the contract -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "data"), [(1, b"a"), (3, b"a"), (2, b"abc")], ids=["twice", "a gap", "more than declared"]
)
def test_a_chunk_that_does_not_continue_the_stream_is_refused(offset: int, data: bytes) -> None:
    assembler = ColumnAssembler(read_header([column(b"1234")]), 1)
    assembler.add(pb.Chunk(offset_bytes=0, data=b"12"))
    with pytest.raises(InternalError, match=f"{len(data)} bytes at byte {offset} came where byte 2 of 4 was next"):
        assembler.add(pb.Chunk(offset_bytes=offset, data=data))


def test_a_stream_that_ends_early_is_refused() -> None:
    assembler = ColumnAssembler(read_header([column(b"1234")]), 1)
    assembler.add(pb.Chunk(offset_bytes=0, data=b"123"))
    with pytest.raises(InternalError, match="after 3 of 4 bytes"):
        assembler.finish()


@pytest.mark.parametrize(
    "message",
    [
        pb.Column(name="x", data_type=pb.DATA_TYPE_INT8),
        pb.Column(name="x", kind=pb.FIELD_KIND_DENSE),
        pb.Column(name="x", kind=pb.FIELD_KIND_JAGGED, data_type=pb.DATA_TYPE_INT8, row_lengths=int64_bytes([1])),
    ],
    ids=["no kind", "no element type", "lengths of another number of rows"],
)
def test_a_column_that_contradicts_itself_is_refused(message: pb.Column) -> None:
    with pytest.raises(InternalError, match="'x'"):
        ColumnAssembler(pb.ReadColumnsHeader(columns=[message]), 2)

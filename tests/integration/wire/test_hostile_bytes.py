"""Bytes that are not what they are said to be: nothing runs, nothing breaks for others, readers get a named error."""

from __future__ import annotations

import pickle
from typing import Any

import grpc
import numpy as np
import pytest
from tests.integration.conftest import Unchanged

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["DataPlaneService"]
METHODS = list(SERVICE.methods)


@pytest.fixture
def registered(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["x"], 0, ["train"])
    client.put_samples(["s", "t"], "p", tags=[{"n": 1}, {}])
    return client


def put_raw(stub: Any, first: bytes, second: bytes, **layout: Any) -> None:
    """Put two rows of field x whose bytes are as given."""
    column = pb.Column(name="x", **layout)
    if column.kind == pb.FIELD_KIND_OBJECT:
        column.row_lengths = np.array([len(first), len(second)], "<i8").tobytes()
    header = pb.PutSamplesHeader(request_id="r", partition_id="p", sample_ids=["s", "t"], columns=[column])
    stub.PutSamples(iter([pb.PutSamplesRequest(header=header, chunk=pb.Chunk(data=first + second))]), timeout=20)


def send(channel: grpc.Channel, method: Any, data: bytes) -> object:
    """Call a method with bytes for a message."""
    kinds: dict[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (True, False): channel.stream_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }
    open_call = kinds[method.client_streaming, method.server_streaming]
    call = open_call(f"/{SERVICE.full_name}/{method.name}", lambda message: message, lambda message: message)
    response = call(iter([data]) if method.client_streaming else data, timeout=20)
    return list(response) if method.server_streaming else response


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_bytes_that_are_no_message_are_refused_by(
    registered: DataPlaneClient, channel: grpc.Channel, unchanged: Unchanged, method: Any
) -> None:
    with unchanged(registered), pytest.raises(grpc.RpcError) as caught:
        send(channel, method, b"\xff" * 50)
    failed: Any = caught.value
    details = dict(failed.trailing_metadata())["grpc-status-details-bin"]
    assert b"INVALID_REQUEST" in details or b"MALFORMED_STREAM" in details


@pytest.mark.parametrize("method", [m for m in METHODS if m.input_type.fields], ids=lambda method: method.name)
def test_text_that_is_no_utf_8_is_refused_by(
    registered: DataPlaneClient, channel: grpc.Channel, unchanged: Unchanged, method: Any
) -> None:
    with unchanged(registered), pytest.raises(grpc.RpcError):
        send(channel, method, b"\x0a\x02\xff\xfe")


def test_an_unknown_method_is_unimplemented(registered: DataPlaneClient, channel: grpc.Channel) -> None:
    call: Any = channel.unary_unary(f"/{SERVICE.full_name}/Nope")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


NO_VALUES = {
    "no msgpack": b"\xc1",
    "truncated": b"\x92\x01",
    "two values": b"\x01\x02",
    "no value": b"",
    "an extension": b"\xd4\x05x",
    "a time stamp": b"\xd6\xff\x00\x00\x00\x01",
    "no UTF-8": b"\xa1\xff",
    "a pickle": pickle.dumps(print),
}


@pytest.mark.parametrize("data", NO_VALUES.values(), ids=NO_VALUES)
def test_an_object_that_is_not_one_msgpack_value_is_an_error_of_its_readers_alone(
    registered: DataPlaneClient, stub: Any, data: bytes
) -> None:
    put_raw(stub, data, b"\xc0", kind=pb.FIELD_KIND_OBJECT)
    with pytest.raises(InternalError, match=r"'x', row 1"):
        registered.get_samples(["t", "s"], "p", ["x"])
    assert registered.get_samples(["t"], "p", ["x"]).get("x").tolist() == [None]


def test_a_bool_that_is_neither_0_nor_1_is_an_error_of_its_readers_alone(
    registered: DataPlaneClient, stub: Any
) -> None:
    put_raw(stub, b"\x02", b"\x01", kind=pb.FIELD_KIND_DENSE, data_type=pb.DATA_TYPE_BOOL)
    with pytest.raises(InternalError, match="'x'"):
        registered.get_samples(["s"], "p", ["x"])
    assert registered.get_samples(["t"], "p", ["x"])["x"].tolist() == [True]

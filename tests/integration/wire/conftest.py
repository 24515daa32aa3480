"""Hand-written messages, as a foreign or broken client would send them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.bdp_probe", 0),  # take little ahead of a slow reader
]


@pytest.fixture
def channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> pb_grpc.DataPlaneServiceStub:
    return pb_grpc.DataPlaneServiceStub(channel)


@pytest.fixture
def refusal() -> Callable[[Callable[[], object]], tuple[grpc.StatusCode, str, str]]:
    """Make a call that fails; its status code, reason and message. Every refusal names its reason for programs."""

    def make(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, str]:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        info = unpacked(caught.value, error_details_pb2.ErrorInfo())
        assert info.domain == "rl_dataplane"
        return caught.value.code(), info.reason, str(caught.value.details())

    return make


@pytest.fixture
def detail() -> Callable[[grpc.RpcError, Any], Any]:
    """The first google.rpc detail of a type that an error carries."""
    return unpacked


def unpacked(error: grpc.RpcError, into: Any) -> Any:
    metadata: Any = error.trailing_metadata() or ()
    packed = next(value for key, value in metadata if key == "grpc-status-details-bin")
    for any_detail in status_pb2.Status.FromString(packed).details:
        if any_detail.Unpack(into):
            return into
    raise AssertionError(f"no {type(into).__name__} among the details")

"""Hand-written messages, as a foreign or broken client would send them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from google.rpc import error_details_pb2, status_pb2
from tests.integration.conftest import OpenServer
from tests.integration.wire.local_peer import ROW_BYTES, Host
from tests.waiting import eventually

from dataplane_client.client import connect
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from rl_dataplane.v1 import local_pb2 as pb

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.bdp_probe", 0),  # take little ahead of a slow reader
]


@pytest.fixture
def way() -> str:
    """Hand-written messages go over gRPC, by whatever way values of clients would travel."""
    return "grpc"


@pytest.fixture
def address(way: str, open_server: OpenServer) -> Iterator[str]:
    """A server of the test's own: ids of requests that are made by hand come again in others."""
    with open_server(way, fresh=True) as address:
        yield address


@pytest.fixture
def channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> pb_grpc.DataPlaneServiceStub:
    return pb_grpc.DataPlaneServiceStub(channel)


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, str]:
    """Make a call that fails; its status code, reason and message. Every refusal names its reason for programs."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    info = unpacked(caught.value, error_details_pb2.ErrorInfo())
    assert info.domain == "rl_dataplane"
    return caught.value.code(), info.reason, str(caught.value.details())


def unpacked(error: grpc.RpcError, into: Any) -> Any:
    """The first google.rpc detail of a type that an error carries."""
    metadata: Any = error.trailing_metadata() or ()
    packed = next(value for key, value in metadata if key == "grpc-status-details-bin")
    for any_detail in status_pb2.Status.FromString(packed).details:
        if any_detail.Unpack(into):
            return into
    raise AssertionError(f"no {type(into).__name__} among the details")


@pytest.fixture
def host(start_server: Callable[..., ServerThread], tmp_path: Path) -> Iterator[Host]:
    """A server of 8 MiB, and what connects to it. Whatever a test does: the server still serves, nothing is held once
    everybody is gone, and the core's laws hold.
    """
    listen = f"unix://{tmp_path}/dataplane.sock"
    server = start_server((listen,), insecure=True, memory_bytes=8 << 20)  # its direct port serves all of 127.0.0.0/8
    with connect(listen, timeout_s=120.0, transport="grpc") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        row = torch.arange(ROW_BYTES, dtype=torch.int64).to(torch.uint8)
        client.put_samples(["row"], "p", {"x": torch.nested.as_nested_tensor([row], layout=torch.jagged)})
        host = Host(server, f"{tmp_path}/dataplane.sock.local", client)
        yield host
        server.check_invariants()
        host.join(host.attach()).call(pb.LOCAL_METHOD_GET_SERVER_STATUS, b"")
        host.close()
        with connect(listen, timeout_s=120.0, transport="shm") as another:
            found = another.get_samples(["row"], "p", ["x"])["x"].values()
            another.clear_samples(None, "p")
        assert found.tolist() == row.tolist()
        eventually(lambda: host.used == 0)
        status = client.server_status()
        assert (status.waiting_claims, status.waiting_puts) == (0, 0)

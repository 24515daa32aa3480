"""Whatever bytes come to whichever endpoint: they are refused by a rule that the answer names, or cut off; nothing of
them stays, nothing of them runs, and others are served as before.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from tests.hostile.endpoints import ENDPOINTS, METHODS, OPTIONS, SERVED, Endpoint, endpoint_of
from tests.hostile.requests import NO_FRAMES, NO_MESSAGES, NO_OBJECTS, REQUESTS, Request, column
from tests.hostile.target import Target
from tests.integration.wire.conftest import unpacked

from dataplane_client.errors import InternalError
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.data_plane_pb2_grpc import DataPlaneServiceStub

pytestmark = pytest.mark.xdist_group("hostile")


@pytest.fixture(params=ENDPOINTS)
def endpoint(target: Target, request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with endpoint_of(target, request.param) as endpoint:
        yield endpoint


@pytest.fixture
def stub(target: Target) -> Iterator[Any]:
    with grpc.insecure_channel(target.grpc_address, options=OPTIONS) as channel:
        yield DataPlaneServiceStub(channel)


def test_a_request_that_breaks_the_contract_is_refused_by_its_rule_and_changes_nothing(
    target: Target, endpoint: Endpoint
) -> None:
    for name, one in REQUESTS.items():
        if one.verb in endpoint.verbs:
            with target.unharmed(name):
                reason, message = endpoint.say(one.verb, endpoint.body(one.verb, one.message))
            assert (name, reason) == (name, one.reason), message
            assert [fact for fact in one.fact.split(" ... ") if fact not in message] == [], (name, message)


def test_bytes_that_are_no_message_are_refused_whatever_the_verb(target: Target, endpoint: Endpoint) -> None:
    for name, body in NO_MESSAGES.items():
        with target.unharmed(name):
            for verb in endpoint.verbs:
                answer = endpoint.say(verb, body)
                is_one = name == "text that is no UTF-8" and not METHODS[verb].input_type.fields
                expected = ["", "INVALID_REQUEST"] if is_one else ["INVALID_REQUEST", "MALFORMED_STREAM"]
                assert answer.reason in expected, (verb, name, answer)


@pytest.mark.parametrize("where", ["grpc", "local", "direct", "http"])
def test_a_connection_that_says_what_it_likes_harms_nobody(target: Target, where: str) -> None:
    for name, data in NO_FRAMES.items():
        with target.unharmed(name):
            for half in (False, True):
                with connected(target, where) as peer, contextlib.suppress(ConnectionError):
                    peer.sendall(data)
                    if half:
                        with contextlib.suppress(OSError):  # the server may have closed the connection by now
                            peer.shutdown(socket.SHUT_WR)
                        while peer.recv(1 << 16):
                            pass
    assert target.is_healthy


def connected(target: Target, where: str) -> socket.socket:
    if where in ("grpc", "local"):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(120.0)
        peer.connect(target.path if where == "local" else target.address.removeprefix("unix://"))
        return peer
    port = target.direct_port.port if where == "direct" else int(target.http.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), 120.0)


def test_values_that_are_not_what_their_type_says_are_an_error_of_their_readers_alone(
    target: Target, endpoint: Endpoint
) -> None:
    """Nothing of a pickle runs: it is read as any other object."""
    client = target.client
    client.register_partition("values", ["x", "b"], 0, ["train"])
    objects: dict[str, Any] = {"name": "x", "kind": pb.FIELD_KIND_OBJECT, "data_type": 0}
    bools: dict[str, Any] = {"name": "b", "kind": pb.FIELD_KIND_DENSE, "data_type": pb.DATA_TYPE_BOOL}
    wrong = {name: (objects, data, b"\xc0", None) for name, data in NO_OBJECTS.items()}
    for name, (layout, first, second, read) in {**wrong, "a bool of 2": (bools, b"\x02", b"\x01", True)}.items():
        lengths = np.array([len(first), len(second)], "<i8").tobytes() if layout is objects else b""
        put = Request("PutSamples", {"partition_id": "values", **column(row_lengths=lengths, **layout)}, "", "").message
        assert endpoint.say("PutSamples", endpoint.body("PutSamples", put, first + second)) == SERVED, name
        field = layout["name"]
        with pytest.raises(InternalError, match=f"'{field}'"):
            client.get_samples(["t", "s"], "values", [field])
        assert client.get_samples(["t"], "values", [field])[field].tolist() == [read], name
        client.clear_samples(None, "values")
    client.drop_partition("values")


# -- what a refusal says beside its reason -----------------------------------------------------------------------------


def test_a_negative_wait_is_no_wait(stub: Any) -> None:
    claim = REQUESTS["claim of more rows than are ready"].message
    claim.wait_timeout.FromSeconds(-100)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ClaimSamples(claim, timeout=120)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_refusal_names_the_field_in_a_bad_request_and_partition_and_sample_in_its_metadata(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.PutSamples(iter([pb.PutSamplesRequest(header=REQUESTS["no kind"].message)]), timeout=120)
    (violation,) = unpacked(caught.value, error_details_pb2.BadRequest()).field_violations
    assert violation.field == "z"
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.ReadColumns(pb.ReadColumnsRequest(partition_id="p", sample_ids=["z"], fields=["x"]), timeout=120))
    info = unpacked(caught.value, error_details_pb2.ErrorInfo())
    assert dict(info.metadata) == {"partition_id": "p", "sample_id": "z"}

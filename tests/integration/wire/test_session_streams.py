"""Streams of sessions, message by message: what opens one, what keeps it, and what becomes of a claim when it ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.wire.session_peer import SessionPeer, opening
from tests.scraping import total

from dataplane_server.config import ServerConfig
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

OK = grpc.StatusCode.OK
EXPIRED = (grpc.StatusCode.ABORTED, "SESSION_EXPIRED")
_numbers = itertools.count()


@pytest.fixture
def flow(stub: Any) -> Any:
    """Partition p with the rows a and b."""
    stub.RegisterPartition(request(pb.RegisterPartitionRequest, fields=["x"], tasks=["train"]), timeout=120)
    header = request(pb.PutSamplesHeader, sample_ids=["a", "b"])
    stub.PutSamples(iter([pb.PutSamplesRequest(header=header)]), timeout=120)
    return stub


@pytest.fixture
def peer(channel: grpc.Channel) -> Iterator[Callable[[], SessionPeer]]:
    """Begin a stream."""
    peers: list[SessionPeer] = []

    def begin() -> SessionPeer:
        peers.append(SessionPeer(channel))
        return peers[-1]

    yield begin
    for each in peers:
        each.break_off()


def request(kind: type[Any], **fields: Any) -> Any:
    """A request to change something of partition p, under a request_id of its own."""
    return kind(request_id=f"request-{next(_numbers)}", partition_id="p", **fields)


def claimed(stub: Any, session_id: str) -> Any:
    """Both rows, claimed in the name of the session."""
    mode = pb.CLAIM_MODE_ACKNOWLEDGED
    wanted = request(pb.ClaimSamplesRequest, task="train", batch_size=2, mode=mode, session_id=session_id)
    wanted.wait_timeout.FromSeconds(100)
    return stub.ClaimSamples(wanted, timeout=120)


def commit(stub: Any, claim_id: str) -> int:
    header = pb.CommitClaimHeader(request_id=f"request-{next(_numbers)}", claim_id=claim_id)
    return int(stub.CommitClaim(iter([pb.CommitClaimRequest(header=header)]), timeout=120).consumed_rows)


def sessions(stub: Any) -> int:
    return int(stub.GetServerStatus(pb.GetServerStatusRequest(), timeout=120).sessions)


def test_the_first_response_names_the_session_and_its_grace(stub: Any, peer: Callable[[], SessionPeer]) -> None:
    first, second = peer().open(grace_s=2.5), peer().open()
    assert first.session_id != second.session_id != ""
    assert (first.grace.ToMilliseconds(), second.grace.ToMilliseconds()) == (2_500, 10_000)
    assert sessions(stub) == 2


@pytest.mark.parametrize(
    ("first", "reason", "words"),
    [
        (b"", "MALFORMED_STREAM", "must open a session"),
        (pb.SessionRequest(close=True), "MALFORMED_STREAM", "must open a session"),
        (pb.SessionRequest(open=pb.OpenSession(), close=True), "MALFORMED_STREAM", "must open a session"),
        (b"\xff\xff\xff", "MALFORMED_STREAM", "invalid session request"),
        (None, "MALFORMED_STREAM", "must open a session"),
        (opening(grace_s=0.0), "INVALID_REQUEST", "grace must be 0.1 to 3600 seconds, got 0"),
        (opening(grace_s=3601.0), "INVALID_REQUEST", "grace must be 0.1 to 3600 seconds, got 3601"),
        (opening(client_name="x" * 257), "INVALID_REQUEST", "at most 256 bytes"),
    ],
    ids=["heartbeat", "close", "open and close", "no protobuf", "nothing", "no grace", "grace too long", "long name"],
)
def test_a_stream_that_does_not_open_a_session_is_refused(
    stub: Any, peer: Callable[[], SessionPeer], first: pb.SessionRequest | bytes | None, reason: str, words: str
) -> None:
    stream = peer()
    if first is None:
        stream.say_no_more()
    else:
        stream.send(first)
    assert stream.ending() == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert words in stream.call.details()
    assert sessions(stub) == 0


@pytest.mark.parametrize("session_id", ["nobody", "x" * 10_000])
def test_a_session_that_never_was_cannot_be_resumed(peer: Callable[[], SessionPeer], session_id: str) -> None:
    stream = peer()
    stream.send(opening(session_id))
    assert stream.ending() == EXPIRED


@pytest.mark.parametrize(
    "later", [opening(), pb.SessionRequest(open=pb.OpenSession(), close=True), b"\xff\xff\xff"], ids=str
)
def test_a_stream_that_says_what_it_may_not_ends_and_its_session_goes_on(
    flow: Any, peer: Callable[[], SessionPeer], later: pb.SessionRequest | bytes
) -> None:
    stream = peer()
    session_id = stream.open().session_id
    stream.send(later)
    assert stream.ending() == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_STREAM")
    assert peer().open(session_id).session_id == session_id


def test_a_heartbeat_may_be_any_message_that_neither_opens_nor_closes(peer: Callable[[], SessionPeer]) -> None:
    stream = peer()
    session_id = stream.open().session_id
    stream.send(b"\x10\x00")  # close = false, spelt out
    stream.send(b"\x98\x06\x01")  # a field of a later contract
    stream.say_no_more()
    assert stream.ending() == (OK, "")
    assert peer().open(session_id).session_id == session_id


@pytest.mark.parametrize("end", ["break_off", "say_no_more"])
def test_a_stream_that_ends_changes_nothing_and_its_session_can_be_resumed(
    flow: Any, peer: Callable[[], SessionPeer], end: str
) -> None:
    stream = peer()
    opened = stream.open(grace_s=20.0)
    claim = claimed(flow, opened.session_id)
    getattr(stream, end)()
    stream.ending()
    assert peer().open(opened.session_id) == opened
    assert commit(flow, claim.claim_id) == 2


def test_a_second_stream_of_a_session_takes_the_first_ones_place(flow: Any, peer: Callable[[], SessionPeer]) -> None:
    first, second = peer(), peer()
    session_id = first.open().session_id
    claim = claimed(flow, session_id)
    second.open(session_id)
    assert first.ending() == (grpc.StatusCode.ABORTED, "SUPERSEDED")
    second.heartbeat()
    assert commit(flow, claim.claim_id) == 2
    second.send(pb.SessionRequest(close=True))
    assert second.ending() == (OK, "")
    assert sessions(flow) == 0


def test_a_server_that_stops_ends_streams_and_watches_instead_of_waiting_for_them() -> None:
    server = ServerThread(ServerConfig(listen=("127.0.0.1:0",)))
    with grpc.insecure_channel(server.addresses[0]) as channel:
        streams = [SessionPeer(channel) for _ in range(3)]
        for stream in streams:
            stream.open()
        watch: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.stop(50.0)
        for stream in streams:
            assert stream.ending() == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        with pytest.raises(grpc.RpcError):
            list(watch)
        assert watch.code() is grpc.StatusCode.UNAVAILABLE


def test_a_stream_is_measured_until_it_is_open(start_server: Callable[..., ServerThread]) -> None:
    server = start_server(http="127.0.0.1:0")
    with grpc.insecure_channel(server.addresses[0]) as channel:
        stream = SessionPeer(channel)
        session_id = stream.open().session_id
        stub: Any = pb_grpc.DataPlaneServiceStub(channel)
        stub.GetServerStatus(pb.GetServerStatusRequest(), timeout=120)
        of_streams = {"transport": "grpc", "verb": "Session"}
        assert total(server, "dataplane_calls_total", code="OK", **of_streams) == 1
        assert total(server, "dataplane_call_seconds_count", **of_streams) == 1
        SessionPeer(channel).open(session_id)
        assert stream.ending()[1] == "SUPERSEDED"
        assert total(server, "dataplane_refusals_total") == 0
        stream.break_off()

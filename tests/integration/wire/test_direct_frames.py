"""Frames at the direct port, and the bytes of values between them: what breaks the contract is refused by name or cut
off, and nothing of it stays.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import Eventually
from tests.integration.wire.local_peer import HEAD, MIB, ROW_BYTES, Host, Peer, put, read

from dataplane_client.client import connect
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.service.grpc.value_streams import MAX_STREAMS
from dataplane_server.service.local.direct_endpoint import DirectEndpoint
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

PUT, READ, FINISH = pb.LOCAL_METHOD_PUT, pb.LOCAL_METHOD_READ, pb.LOCAL_METHOD_FINISH_WRITE
DIRECT, STATUS = pb.LOCAL_METHOD_DIRECT, pb.LOCAL_METHOD_GET_SERVER_STATUS
VALUES = bytes(range(256)) * 16
BIG_BYTES = 7 * MIB
"""More than both sockets of a connection hold."""
OTHERS = [number for number in pb.LocalMethod.values() if number != DIRECT]


class Direct:
    """The direct port of a server."""

    def __init__(self, host: Host) -> None:
        self.host = host
        status = plane_pb.GetServerStatusResponse.FromString(host.join().said(STATUS))
        self.port = status.direct_port
        self._opened = contextlib.ExitStack()

    def connect(self, source: str = "127.0.0.1") -> Peer:
        peer = Peer(socket.create_connection(("127.0.0.1", self.port.port), 120.0, (source, 0)))
        self._opened.callback(peer.close)
        return peer

    def begin(self, source: str = "127.0.0.1") -> Peer:
        peer = self.connect(source)
        peer.call(DIRECT, pb.DirectRequest(nonce=self.port.nonce), pb.DirectResponse)
        return peer

    def reserve(self, size_bytes: int, source: str = "127.0.0.1", **more: Any) -> Peer:
        """A peer with a reservation of handle 1."""
        peer = self.begin(source)
        assert peer.call(PUT, put(1, size_bytes, **more), pb.LocalWriteResponse).HasField("reservation")
        return peer

    def put_big(self) -> Peer:
        """Put the row `big`, of zeros."""
        peer = self.reserve(BIG_BYTES, sample_ids=["big"])
        peer.socket.sendall(finish_frame() + bytes(BIG_BYTES))
        assert peer.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED
        return peer

    @property
    def endpoint(self) -> DirectEndpoint:
        endpoint = self.host.server.server._direct
        assert endpoint is not None
        return endpoint

    def stored(self, sample_id: str) -> bytes:
        return bytes(self.host.client.get_samples([sample_id], "p", ["x"])["x"].values().tolist())

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def direct(host: Host) -> Iterator[Direct]:
    direct = Direct(host)
    yield direct
    direct.close()


def finish_frame(handle: int = 1) -> bytes:
    body = pb.FinishWriteRequest(handle=handle).SerializeToString()
    return HEAD.pack(len(body), FINISH) + body


# -- the first request -------------------------------------------------------------------------------------------------


def test_a_connection_opens_with_one_method_only(direct: Direct) -> None:
    peer = direct.connect()
    for method in (*OTHERS, 99, 65535):
        assert peer.refused(method) == ("INVALID_REQUEST", "the first request on a connection must be DIRECT")
    peer.call(DIRECT, pb.DirectRequest(nonce=direct.port.nonce), pb.DirectResponse)
    peer.call(STATUS, b"")


def test_who_does_not_know_the_nonce_is_refused(direct: Direct) -> None:
    peer = direct.connect()
    for nonce in (b"", b"x" * 16, direct.port.nonce[:-1], direct.port.nonce + b"x"):
        reason, message = peer.refused(DIRECT, pb.DirectRequest(nonce=nonce))
        assert (reason, "ask for its status again" in message) == ("UNAUTHENTICATED", True)
    assert peer.refused(STATUS)[0] == "INVALID_REQUEST"


# -- values that come --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, len(VALUES) - 1, len(VALUES)])
def test_values_may_come_in_any_pieces(direct: Direct, cut: int) -> None:
    peer = direct.reserve(len(VALUES), sample_ids=["s"])
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.socket.sendall(finish_frame() + VALUES[:cut])
    threading.Event().wait(0.02)
    peer.socket.sendall(VALUES[cut:])
    outcome, body = peer.receive()
    assert outcome == pb.LOCAL_OUTCOME_UNSPECIFIED
    assert pb.LocalWriteResponse.FromString(body).put.size_bytes == len(VALUES)
    assert direct.stored("s") == VALUES
    peer.call(STATUS, b"")


@pytest.mark.parametrize("sent", [0, 1, MIB - 1])
def test_a_client_that_leaves_before_its_last_byte_has_put_nothing(
    direct: Direct, eventually: Eventually, sent: int
) -> None:
    peer = direct.reserve(MIB)
    peer.socket.sendall(finish_frame() + bytes(sent))
    peer.close()
    eventually(lambda: direct.host.used == ROW_BYTES)
    assert direct.host.client.server_status().rows == 1


@pytest.mark.parametrize("handle", [2, 0])
def test_values_without_a_reservation_are_refused_and_end_the_connection(direct: Direct, handle: int) -> None:
    peer = direct.reserve(10)
    peer.socket.sendall(finish_frame(handle) + bytes(10))
    assert peer.receive()[0] == pb.LOCAL_OUTCOME_ERROR
    assert peer.ended


@pytest.mark.parametrize("sent", [None, 0, 100])
def test_a_client_that_stalls_is_cut_off_and_its_put_is_gone(
    direct: Direct, eventually: Eventually, sent: int | None
) -> None:
    endpoint = direct.endpoint
    endpoint.stall_timeout_s = endpoint.slow_s = 0.2
    peer = direct.reserve(MIB)
    if sent is not None:
        peer.socket.sendall(finish_frame() + bytes(sent))
    assert peer.ended
    eventually(lambda: direct.host.used == ROW_BYTES)


def test_a_put_that_is_under_way_when_the_server_drains_is_finished(direct: Direct) -> None:
    peer = direct.reserve(len(VALUES), sample_ids=["s"])
    server = direct.host.server.server
    assert server._direct is not None
    server._direct.draining = True
    assert direct.begin().refused(STATUS)[0] == "DRAINING"
    peer.socket.sendall(finish_frame() + VALUES)
    assert peer.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED
    server._direct.draining = False
    assert direct.stored("s") == VALUES


def test_a_server_ends_for_a_snapshot_though_a_client_holds_a_reservation(tmp_path: Path) -> None:
    listen, limits = f"unix://{tmp_path}/dataplane.sock", Limits(memory_bytes=MIB, max_rows=10)
    server = ServerThread(ServerConfig((listen,), direct="127.0.0.1:0", data_dir=tmp_path / "data", limits=limits))
    with connect(listen, transport="grpc") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.create_snapshot("a")
        host = Host(server, f"{tmp_path}/dataplane.sock.local", client)
        direct = Direct(host)
        direct.reserve(10)
        restore = plane_pb.RestoreSnapshotRequest(snapshot="a", request_id="r")
        host.join().call(pb.LOCAL_METHOD_RESTORE_SNAPSHOT, restore)
        server.stop()
        direct.close()
        host.close()


# -- values that go ----------------------------------------------------------------------------------------------------


def test_values_follow_the_response_and_then_comes_the_next(direct: Direct) -> None:
    peer = direct.begin()
    body = read(1).SerializeToString()
    request = HEAD.pack(len(body), READ) + body
    peer.socket.sendall(request * 3 + HEAD.pack(0, STATUS))  # a client may ask before it has read
    for _ in range(3):
        outcome, found = peer.receive()
        assert outcome == pb.LOCAL_OUTCOME_UNSPECIFIED
        answer = pb.LocalReadResponse.FromString(found)
        assert answer.HasField("lease")
        assert not answer.lease.offsets
        assert peer.exactly(ROW_BYTES) == VALUES
    assert peer.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED


@pytest.mark.parametrize("end", ["leaves", "stalls", pytest.param("stalls by default", marks=pytest.mark.long)])
def test_rows_that_a_client_does_not_take_are_free_again_when_it(
    direct: Direct, eventually: Eventually, end: str
) -> None:
    endpoint = direct.endpoint
    endpoint.slow_s = {"leaves": 60.0, "stalls": 0.2}.get(end, endpoint.slow_s)
    peer = direct.put_big()
    peer.send(READ, read(1, "big"))
    assert peer.socket.recv(1)
    direct.host.client.clear_samples(["big"], "p")
    assert direct.host.used == ROW_BYTES + BIG_BYTES  # until the reader has had it
    if end == "leaves":
        peer.close()
    eventually(lambda: direct.host.used == ROW_BYTES)


def test_reads_beyond_those_that_may_wait_for_a_place_are_refused_and_the_others_served(direct: Direct) -> None:
    direct.endpoint.slow_s = 1000.0
    direct.put_big()
    places, waiting = MAX_STREAMS // 4, 2 * MAX_STREAMS
    peers = [direct.begin() for _ in range(places + waiting)]
    last = direct.begin()
    for peer in peers:
        peer.send(READ, read(1, "big"))
        last.call(STATUS, b"")  # the server has seen it: so many at once, and it would refuse some
    reason, message = last.refused(READ, read(1, "big"))
    assert reason == "LIMIT_REACHED"
    assert message.startswith("16 streams of 127.0.0.1 carry values already, and 128 wait: ")
    for peer in peers[: places - 1]:
        peer.close()
    for peer in peers[places - 1 : places + 1]:  # had a place, waited for one
        assert peer.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED
        assert peer.exactly(BIG_BYTES) == bytes(BIG_BYTES)
    last.call(STATUS, b"")


@pytest.mark.parametrize("what", ["reads", "puts"])
def test_many_of_one_host_that_move_no_values_keep_no_other_host_out(direct: Direct, what: str) -> None:
    direct.endpoint.slow_s = 1000.0
    direct.put_big()
    witness = direct.begin()
    if what == "reads":
        stuck = [direct.begin() for _ in range(MAX_STREAMS)]
    else:
        stuck = [direct.reserve(10, sample_ids=[f"stuck {number}"]) for number in range(MAX_STREAMS)]
    for peer in stuck:
        if what == "reads":
            peer.send(READ, read(1, "big"))
        else:
            peer.socket.sendall(finish_frame())
        witness.call(STATUS, b"")  # the server has seen it: so many at once, and it would refuse some
    if what == "reads":
        other = direct.begin("127.0.0.2")
        other.send(READ, read(1, "big"))
        assert other.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED
        assert other.exactly(BIG_BYTES) == bytes(BIG_BYTES)
    else:
        other = direct.reserve(len(VALUES), "127.0.0.2", sample_ids=["s"])
        other.socket.sendall(finish_frame() + VALUES)
        assert other.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED
        assert direct.stored("s") == VALUES
    inline = read(1, inline_bytes=ROW_BYTES)  # takes no place
    assert direct.begin().call(READ, inline, pb.LocalReadResponse).values == direct.stored("row")
    for peer in stuck:
        peer.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            assert peer.socket.recv(1)  # values of its own, and not the end


@pytest.mark.parametrize("what", ["read", "put"])
def test_a_client_that_moves_a_byte_now_and_then_is_cut_off(direct: Direct, eventually: Eventually, what: str) -> None:
    direct.endpoint.slow_s = 0.5
    if what == "read":
        peer = direct.put_big()
        peer.send(READ, read(1, "big"))
        assert peer.socket.recv(1)
        direct.host.client.clear_samples(["big"], "p")
    else:
        peer = direct.reserve(MIB)
        peer.socket.sendall(finish_frame())

    def is_over() -> bool:
        with contextlib.suppress(OSError):
            assert peer.socket.recv(1) if what == "read" else peer.socket.send(b"x")
        return direct.host.used == ROW_BYTES

    eventually(is_over)

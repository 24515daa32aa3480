"""Frames at the direct port, and the bytes of values between them: what breaks the contract is refused by name or cut
off, and nothing of it stays.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.integration.wire.local_peer import HEAD, MIB, ROW_BYTES, Host, Peer, framed, put, read
from tests.waiting import eventually

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


def reserve(host: Host, size_bytes: int, source: str = "127.0.0.1", **more: Any) -> Peer:
    """A peer with a reservation of handle 1."""
    peer = host.join_directly(source)
    assert peer.call(PUT, put(1, size_bytes, **more), pb.LocalWriteResponse).HasField("reservation")
    return peer


def put_big(host: Host) -> Peer:
    """Put the row `big`, of zeros."""
    peer = reserve(host, BIG_BYTES, sample_ids=["big"])
    peer.socket.sendall(finish_frame() + bytes(BIG_BYTES))
    assert peer.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED
    return peer


def endpoint_of(host: Host) -> DirectEndpoint:
    endpoint = host.server.server._direct
    assert endpoint is not None
    return endpoint


def finish_frame(handle: int = 1) -> bytes:
    return framed(FINISH, pb.FinishWriteRequest(handle=handle))


# -- the first request -------------------------------------------------------------------------------------------------


def test_a_connection_opens_with_one_method_only(host: Host) -> None:
    peer = host.connect_directly()
    for method in (*OTHERS, 99, 65535):
        assert peer.refused(method) == ("INVALID_REQUEST", "the first request on a connection must be DIRECT")
    peer.call(DIRECT, pb.DirectRequest(nonce=host.direct_port.nonce), pb.DirectResponse)
    peer.call(STATUS, b"")


def test_who_does_not_know_the_nonce_is_refused(host: Host) -> None:
    peer = host.connect_directly()
    for nonce in (b"", b"x" * 16, host.direct_port.nonce[:-1], host.direct_port.nonce + b"x"):
        reason, message = peer.refused(DIRECT, pb.DirectRequest(nonce=nonce))
        assert (reason, "ask for its status again" in message) == ("UNAUTHENTICATED", True)
    assert peer.refused(STATUS)[0] == "INVALID_REQUEST"


# -- values that come --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, len(VALUES) - 1, len(VALUES)])
def test_values_may_come_in_any_pieces(host: Host, cut: int) -> None:
    peer = reserve(host, len(VALUES), sample_ids=["s"])
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.socket.sendall(finish_frame() + VALUES[:cut])
    threading.Event().wait(0.02)
    peer.socket.sendall(VALUES[cut:])
    outcome, body = peer.receive()
    assert outcome == pb.LOCAL_OUTCOME_UNSPECIFIED
    assert pb.LocalWriteResponse.FromString(body).put.size_bytes == len(VALUES)
    assert host.stored("s") == VALUES
    peer.call(STATUS, b"")


@pytest.mark.parametrize("sent", [0, 1, MIB - 1])
def test_a_client_that_leaves_before_its_last_byte_has_put_nothing(host: Host, sent: int) -> None:
    peer = reserve(host, MIB)
    peer.socket.sendall(finish_frame() + bytes(sent))
    peer.close()
    eventually(lambda: host.used == ROW_BYTES)
    assert host.client.server_status().rows == 1


@pytest.mark.parametrize("handle", [2, 0])
def test_values_without_a_reservation_are_refused_and_end_the_connection(host: Host, handle: int) -> None:
    peer = reserve(host, 10)
    peer.socket.sendall(finish_frame(handle) + bytes(10))
    assert peer.receive()[0] == pb.LOCAL_OUTCOME_ERROR
    assert peer.ended


@pytest.mark.parametrize("sent", [None, 0, 100])
def test_a_client_that_stalls_is_cut_off_and_its_put_is_gone(host: Host, sent: int | None) -> None:
    endpoint = endpoint_of(host)
    endpoint.stall_timeout_s = endpoint.slow_s = 0.2
    peer = reserve(host, MIB)
    if sent is not None:
        peer.socket.sendall(finish_frame() + bytes(sent))
    assert peer.ended
    eventually(lambda: host.used == ROW_BYTES)


def test_a_put_that_is_under_way_when_the_server_drains_is_finished(host: Host) -> None:
    peer = reserve(host, len(VALUES), sample_ids=["s"])
    endpoint_of(host).draining = True
    assert host.join_directly().refused(STATUS)[0] == "DRAINING"
    peer.socket.sendall(finish_frame() + VALUES)
    assert peer.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED
    endpoint_of(host).draining = False
    assert host.stored("s") == VALUES


def test_a_server_ends_for_a_snapshot_though_a_client_holds_a_reservation(tmp_path: Path) -> None:
    listen, limits = f"unix://{tmp_path}/dataplane.sock", Limits(memory_bytes=MIB, max_rows=10)
    server = ServerThread(ServerConfig((listen,), direct="127.0.0.1:0", data_dir=tmp_path / "data", limits=limits))
    with connect(listen, transport="grpc") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.create_snapshot("a", timeout_s=600.0)
        host = Host(server, f"{tmp_path}/dataplane.sock.local", client)
        reserve(host, 10)
        restore = plane_pb.RestoreSnapshotRequest(snapshot="a", request_id="r")
        host.join().call(pb.LOCAL_METHOD_RESTORE_SNAPSHOT, restore)
        server.stop()
        host.close()


# -- values that go ----------------------------------------------------------------------------------------------------


def test_values_follow_the_response_and_then_comes_the_next(host: Host) -> None:
    peer = host.join_directly()
    peer.socket.sendall(framed(READ, read(1)) * 3 + HEAD.pack(0, STATUS))  # a client may ask before it has read
    for _ in range(3):
        outcome, found = peer.receive()
        assert outcome == pb.LOCAL_OUTCOME_UNSPECIFIED
        answer = pb.LocalReadResponse.FromString(found)
        assert answer.HasField("lease")
        assert not answer.lease.offsets
        assert peer.exactly(ROW_BYTES) == VALUES
    assert peer.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED


@pytest.mark.parametrize("end", ["leaves", "stalls", pytest.param("stalls by default", marks=pytest.mark.long)])
def test_rows_that_a_client_does_not_take_are_free_again_when_it(host: Host, end: str) -> None:
    endpoint = endpoint_of(host)
    endpoint.slow_s = {"leaves": 60.0, "stalls": 0.2}.get(end, endpoint.slow_s)
    peer = put_big(host)
    peer.send(READ, read(1, "big"))
    assert peer.socket.recv(1)
    host.client.clear_samples(["big"], "p")
    assert host.used == ROW_BYTES + BIG_BYTES  # until the reader has had it
    if end == "leaves":
        peer.close()
    eventually(lambda: host.used == ROW_BYTES)


def test_reads_beyond_those_that_may_wait_for_a_place_are_refused_and_the_others_served(host: Host) -> None:
    endpoint_of(host).slow_s = 1000.0
    put_big(host)
    places, waiting = MAX_STREAMS // 4, 2 * MAX_STREAMS
    peers = [host.join_directly() for _ in range(places + waiting)]
    last = host.join_directly()
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
def test_many_of_one_host_that_move_no_values_keep_no_other_host_out(host: Host, what: str) -> None:
    endpoint_of(host).slow_s = 1000.0
    put_big(host)
    witness = host.join_directly()
    if what == "reads":
        stuck = [host.join_directly() for _ in range(MAX_STREAMS)]
    else:
        stuck = [reserve(host, 10, sample_ids=[f"stuck {number}"]) for number in range(MAX_STREAMS)]
    for peer in stuck:
        if what == "reads":
            peer.send(READ, read(1, "big"))
        else:
            peer.socket.sendall(finish_frame())
        witness.call(STATUS, b"")  # the server has seen it: so many at once, and it would refuse some
    if what == "reads":
        other = host.join_directly("127.0.0.2")
        other.send(READ, read(1, "big"))
        assert other.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED
        assert other.exactly(BIG_BYTES) == bytes(BIG_BYTES)
    else:
        other = reserve(host, len(VALUES), "127.0.0.2", sample_ids=["s"])
        other.socket.sendall(finish_frame() + VALUES)
        assert other.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED
        assert host.stored("s") == VALUES
    inline = read(1, inline_bytes=ROW_BYTES)  # takes no place
    assert host.join_directly().call(READ, inline, pb.LocalReadResponse).values == host.stored("row")
    for peer in stuck:
        peer.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            assert peer.socket.recv(1)  # values of its own, and not the end


@pytest.mark.parametrize("what", ["read", "put"])
def test_a_client_that_moves_a_byte_now_and_then_is_cut_off(host: Host, what: str) -> None:
    endpoint_of(host).slow_s = 0.5
    if what == "read":
        peer = put_big(host)
        peer.send(READ, read(1, "big"))
        assert peer.socket.recv(1)
        host.client.clear_samples(["big"], "p")
    else:
        peer = reserve(host, MIB)
        peer.socket.sendall(finish_frame())

    def is_over() -> bool:
        with contextlib.suppress(OSError):
            assert peer.socket.recv(1) if what == "read" else peer.socket.send(b"x")
        return host.used == ROW_BYTES

    eventually(is_over)

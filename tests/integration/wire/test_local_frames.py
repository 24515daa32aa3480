"""Frames of the local socket that break the contract: refused by name or cut off, and nothing of them stays."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct

import pytest
from tests.integration.wire.local_peer import HEAD, MIB, ROW_BYTES, Host, Peer, claim, framed, put, read
from tests.waiting import eventually

from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

STATUS = pb.LOCAL_METHOD_GET_SERVER_STATUS
OPENING = [number for number in pb.LocalMethod.values() if number not in (pb.LOCAL_METHOD_ATTACH, pb.LOCAL_METHOD_JOIN)]
UNKNOWN = [0, pb.LOCAL_METHOD_ATTACH, pb.LOCAL_METHOD_JOIN, 8, 15, 99, 65535]


def test_a_session_has_no_method_that_opens_one_nor_any_unknown_one(host: Host) -> None:
    peer = host.join()
    for method in UNKNOWN:
        assert peer.refused(method)[0] == "INVALID_REQUEST", method
    peer.call(STATUS, b"")


def test_a_connection_opens_with_attach_or_join_alone(host: Host) -> None:
    peer = host.connect()
    for method in (*OPENING, 99, 65535):
        assert peer.refused(method)[0] == "INVALID_REQUEST", method
    peer.call(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=host.lifeline.attached.session))
    peer.call(STATUS, b"")


def test_a_session_is_joined_by_its_token_alone(host: Host) -> None:
    peer = host.connect()
    for token in (b"", b"x", b"x" * 16, b"x" * 62, b"\xff" * 50):
        assert peer.refused(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=token))[0] == "INVALID_REQUEST"
        assert peer.refused(STATUS)[0] == "INVALID_REQUEST"
    assert peer.refused(pb.LOCAL_METHOD_JOIN, b"\x0a\x04\x0a")[0] == "INVALID_REQUEST"  # no message at all


def test_a_let_go_that_is_no_message_ends_the_connection_and_its_session(host: Host) -> None:
    lifeline = host.attach()
    caller = host.join(lifeline)
    caller.call(pb.LOCAL_METHOD_PUT, put(1, MIB), pb.LocalWriteResponse)
    lifeline.send(pb.LOCAL_METHOD_LET_GO, b"\xff" * 50)
    assert lifeline.ended
    assert caller.ended
    eventually(lambda: host.used == ROW_BYTES)


@pytest.mark.parametrize(
    ("size", "joined"), [((20 << 20) + 1, True), ((1 << 32) - 1, True), (65, False), ((1 << 32) - 1, False)]
)
def test_a_frame_over_the_limit_ends_the_connection_before_its_body_comes(host: Host, joined: bool, size: int) -> None:
    peer = host.join() if joined else host.connect()
    peer.socket.sendall(HEAD.pack(size, STATUS))
    assert peer.ended


def test_a_frame_of_20_mib_is_read_to_its_end(host: Host) -> None:
    peer = host.join()
    reason, _ = peer.refused(pb.LOCAL_METHOD_GET_PARTITION, b"\xff" * (20 * MIB))
    assert reason == "INVALID_REQUEST"


def test_a_frame_may_come_byte_by_byte(host: Host) -> None:
    peer = host.join()
    for byte in framed(pb.LOCAL_METHOD_PUT, put(1, 4, b"abcd")):
        peer.socket.sendall(bytes([byte]))
    assert peer.receive()[0] == pb.LOCAL_OUTCOME_UNSPECIFIED
    assert host.client.server_status().rows == 2


def test_frames_that_come_together_are_carried_out_in_order(host: Host) -> None:
    lifeline = host.attach()
    let_go = framed(pb.LOCAL_METHOD_LET_GO, pb.LetGoRequest(handles=[1]))
    lifeline.socket.sendall(let_go * 3 + framed(pb.LOCAL_METHOD_READ, read(1)))
    assert lifeline.receive()[0] == pb.LOCAL_OUTCOME_ERROR  # its handle was let go of


def test_a_second_request_while_one_is_under_way_ends_the_connection_and_both(host: Host) -> None:
    peer = host.join()
    peer.send(pb.LOCAL_METHOD_CLAIM_SAMPLES, claim(rows=2))
    eventually(lambda: host.client.server_status().waiting_claims == 1)
    peer.send(STATUS)
    assert peer.ended
    eventually(lambda: host.client.server_status().waiting_claims == 0)


def send_bit_by_bit(peer: Peer, data: bytes) -> None:
    """Unlike sendall this times out only when nothing at all is taken in."""
    rest = memoryview(data)
    while rest:
        rest = rest[peer.socket.send(rest[:65536]) :]


def test_requests_whose_responses_nobody_reads_are_not_taken_in_for_ever(host: Host) -> None:
    peer = host.connect()
    peer.socket.settimeout(2.0)
    with pytest.raises(TimeoutError):
        send_bit_by_bit(peer, HEAD.pack(0, STATUS) * MIB)
    peer.socket.settimeout(120.0)
    assert peer.receive()[0] == pb.LOCAL_OUTCOME_ERROR


def test_what_is_held_outlives_the_connection_that_asked_for_it(host: Host) -> None:
    peer = host.join()
    peer.call(pb.LOCAL_METHOD_PUT, put(1, MIB), pb.LocalWriteResponse)
    peer.close()
    response = host.join().call(pb.LOCAL_METHOD_FINISH_WRITE, pb.FinishWriteRequest(handle=1), pb.LocalWriteResponse)
    assert response.put.created_rows == 1


def test_everything_ends_with_the_lifeline(host: Host) -> None:
    lifeline = host.attach()
    caller, claimer, waiter = host.join(lifeline), host.join(lifeline), host.join(lifeline)
    caller.call(pb.LOCAL_METHOD_READ, read(1), pb.LocalReadResponse)
    caller.call(pb.LOCAL_METHOD_PUT, put(2, 7 * MIB), pb.LocalWriteResponse)
    claimer.send(pb.LOCAL_METHOD_CLAIM_SAMPLES, claim(rows=2))
    waiter.send(pb.LOCAL_METHOD_PUT, put(3, 2 * MIB))
    eventually(lambda: host.client.server_status().waiting_claims == host.client.server_status().waiting_puts == 1)
    host.client.clear_samples(["row"], "p")
    assert host.used == 7 * MIB + ROW_BYTES
    lifeline.close()
    assert [peer.ended for peer in (caller, claimer, waiter)] == [True] * 3
    eventually(lambda: host.used == 0)
    reason = host.connect().refused(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=lifeline.attached.session))[0]
    assert reason == "INVALID_REQUEST"
    host.join().call(pb.LOCAL_METHOD_PUT, put(4, ROW_BYTES, bytes(range(256)) * 16, sample_ids=["row"]))


def test_attaching_lends_one_descriptor_for_reading_and_one_for_writing(host: Host) -> None:
    attached, (reading, writing) = host.lifeline.attached, host.lifeline.descriptors
    shared = host.join().call(STATUS, b"", plane_pb.GetServerStatusResponse).shared_memory
    for found in (os.fstat(reading), os.fstat(writing)):
        identity = struct.pack("<QQ", found.st_dev, found.st_ino)
        assert hashlib.sha256(attached.proof + identity).digest() == shared.nonce
    with pytest.raises(PermissionError):
        mmap.mmap(reading, attached.arena_bytes, prot=mmap.PROT_WRITE | mmap.PROT_READ)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(reading, b"x")
    for cut in (0, attached.arena_bytes // 2, attached.arena_bytes * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(writing, cut)

"""The handles of hand-written calls: each holds bytes until it is released, once, and no longer."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from google.protobuf.message import Message
from tests.integration.wire.local_peer import MIB, ROW_BYTES, Host, Peer, claim, column, put, read
from tests.waiting import eventually

from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

PUT, READ, COMMIT = pb.LOCAL_METHOD_PUT, pb.LOCAL_METHOD_READ, pb.LOCAL_METHOD_COMMIT
FINISH = pb.LOCAL_METHOD_FINISH_WRITE


def finish(peer: Peer, handle: int) -> pb.LocalWriteResponse:
    response: pb.LocalWriteResponse = peer.call(FINISH, pb.FinishWriteRequest(handle=handle), pb.LocalWriteResponse)
    return response


def runs_of(runs: pb.ArenaRuns) -> list[tuple[int, int]]:
    offsets, sizes = np.frombuffer(runs.offsets, "<i8").tolist(), np.frombuffer(runs.sizes, "<i8").tolist()
    return list(zip(offsets, sizes, strict=True))


def fill(host: Host, runs: pb.ArenaRuns, values: bytes) -> None:
    """Write values to their places in the arena."""
    with mmap.mmap(host.lifeline.descriptors[1], host.lifeline.attached.arena_bytes) as memory:
        for offset, size in runs_of(runs):
            memory[offset : offset + size], values = values[:size], values[size:]
    assert not values


def test_a_put_is_seen_when_it_is_finished_and_not_before(host: Host) -> None:
    peer = host.join()
    request = put(7, 5, sample_ids=["s"])
    lent = peer.call(PUT, request, pb.LocalWriteResponse)
    assert host.client.server_status().rows == 1
    fill(host, lent.reservation, b"abcde")
    answer = finish(peer, 7).put
    assert (answer.created_rows, answer.size_bytes, len(answer.generations)) == (1, 5, 8)
    assert host.stored("s") == b"abcde"


def test_a_put_that_is_repeated_after_it_was_applied_holds_nothing(host: Host) -> None:
    peer, request = host.join(), put(1, MIB)
    peer.call(PUT, request, pb.LocalWriteResponse)
    finish(peer, 1)
    request.handle = 2
    assert peer.call(PUT, request, pb.LocalWriteResponse).put.created_rows == 1
    assert peer.refused(FINISH, pb.FinishWriteRequest(handle=2))[0] == "INVALID_REQUEST"


@pytest.mark.parametrize("end", ["session", "handle", "call"])
def test_a_put_whose_client_leaves_while_its_values_are_hashed_is_there_whole_or_gone(host: Host, end: str) -> None:
    lifeline = host.attach()
    peer = host.join(lifeline)
    peer.call(PUT, put(1, 6 * MIB, once=["x"]), pb.LocalWriteResponse)
    peer.send(FINISH, pb.FinishWriteRequest(handle=1))
    if end == "call":
        peer.close()
    if end == "session":
        lifeline.close()
    else:
        host.let_go(1, lifeline=lifeline)
    eventually(lambda: host.used == host.client.partition("p").size_bytes)
    assert host.used in (ROW_BYTES, ROW_BYTES + 6 * MIB)


def test_a_handle_that_holds_nothing_cannot_be_finished(host: Host) -> None:
    peer = host.join()
    assert peer.call(PUT, put(1, 0), pb.LocalWriteResponse).put.created_rows == 1  # no bytes, so it holds nothing
    peer.call(PUT, put(2, 5), pb.LocalWriteResponse)
    finish(peer, 2)
    for handle in (0, 1, 2, 3, (1 << 64) - 1):
        told = ("INVALID_REQUEST", f"handle {handle} holds no reservation")
        assert peer.refused(FINISH, pb.FinishWriteRequest(handle=handle)) == told


def test_a_lease_cannot_be_finished_and_stays(host: Host) -> None:
    peer = host.join()
    peer.call(READ, read(1), pb.LocalReadResponse)
    assert peer.refused(FINISH, pb.FinishWriteRequest(handle=1))[0] == "INVALID_REQUEST"
    host.client.clear_samples(["row"], "p")
    assert host.used == ROW_BYTES
    host.let_go(1)
    eventually(lambda: host.used == 0)
    peer.call(PUT, put(2, ROW_BYTES, bytes(range(256)) * 16, sample_ids=["row"]), pb.LocalWriteResponse)


def test_a_handle_of_another_session_is_unknown(host: Host) -> None:
    host.join().call(PUT, put(1, MIB), pb.LocalWriteResponse)
    other = host.attach()
    assert host.join(other).refused(FINISH, pb.FinishWriteRequest(handle=1))[0] == "INVALID_REQUEST"
    host.let_go(1, lifeline=other)
    host.join(other)
    assert host.used == ROW_BYTES + MIB


@pytest.mark.parametrize("first", [(PUT, put(1, MIB)), (READ, read(1))], ids=["put", "read"])
@pytest.mark.parametrize("second", [(PUT, put(1, 2 * MIB)), (READ, read(1))], ids=["put", "read"])
def test_a_handle_that_is_held_cannot_be_taken_again(
    host: Host, first: tuple[int, Message], second: tuple[int, Message]
) -> None:
    peer = host.join()
    peer.call(*first)
    used = host.used
    reason = peer.refused(*second)
    assert reason == ("INVALID_REQUEST", "handle 1 is in use already")
    assert host.used == used  # the first is still held, the second is not
    host.let_go(1)
    eventually(lambda: host.used == ROW_BYTES)


@pytest.mark.parametrize("times", [1, 3])
def test_unknown_handles_may_be_let_go_of(host: Host, times: int) -> None:
    for _ in range(times):
        host.let_go(0, 5, 5, (1 << 64) - 1)
    host.lifeline.call(pb.LOCAL_METHOD_GET_SERVER_STATUS, b"")


@pytest.mark.parametrize("request_", [put(9, MIB), read(9)], ids=["put", "read"])
def test_a_call_that_was_let_go_of_before_it_came_holds_nothing(
    host: Host, request_: pb.LocalPutRequest | pb.LocalReadRequest
) -> None:
    host.let_go(9)
    host.lifeline.call(pb.LOCAL_METHOD_GET_SERVER_STATUS, b"")
    method = PUT if isinstance(request_, pb.LocalPutRequest) else READ
    assert host.join().refused(method, request_) == ("INVALID_REQUEST", "handle 9 was released")
    host.client.clear_samples(["row"], "p")
    assert host.used == 0
    host.join().call(PUT, put(1, ROW_BYTES, bytes(range(256)) * 16, sample_ids=["row"]))


def test_handles_let_go_of_before_their_calls_are_remembered_up_to_a_bound(host: Host) -> None:
    host.let_go(*range(1, 10_001))
    host.lifeline.call(pb.LOCAL_METHOD_GET_SERVER_STATUS, b"")
    peer = host.join()
    assert peer.refused(PUT, put(10_000, MIB))[0] == "INVALID_REQUEST"
    assert peer.call(PUT, put(1, MIB), pb.LocalWriteResponse).HasField("reservation")


def test_a_put_that_was_let_go_of_while_it_waited_for_room_holds_nothing(host: Host) -> None:
    holder, waiter = host.join(), host.join()
    holder.call(PUT, put(1, 7 * MIB), pb.LocalWriteResponse)
    waiter.send(PUT, put(2, 2 * MIB))
    eventually(lambda: host.client.server_status().waiting_puts == 1)
    host.let_go(2, 1)
    assert waiter.receive()[0] == pb.LOCAL_OUTCOME_ERROR
    eventually(lambda: host.used == ROW_BYTES)


def test_small_values_are_written_and_read_in_one_call(host: Host) -> None:
    peer = host.join()
    assert peer.call(PUT, put(1, 5, b"abcde", sample_ids=["s"]), pb.LocalWriteResponse).put.size_bytes == 5
    response = peer.call(READ, read(2, "s", inline_bytes=5), pb.LocalReadResponse)
    assert (response.values, response.HasField("lease")) == (b"abcde", False)
    assert response.header.columns[0] == column(5)


@pytest.mark.parametrize(("declared", "sent"), [(5, 4), (5, 6), (5, 0), (0, 1)])
def test_values_of_another_size_are_refused_and_nothing_is_held(host: Host, declared: int, sent: int) -> None:
    peer = host.join()
    reason, message = peer.refused(PUT, put(1, declared, bytes(sent)))
    assert reason == "MALFORMED_STREAM"
    assert f"holds {sent} bytes of values, its header declares {declared}" in message
    assert host.used == ROW_BYTES
    assert host.client.server_status().rows == 1


def test_values_in_a_message_are_at_most_1_mib(host: Host) -> None:
    peer = host.join()
    assert peer.call(PUT, put(1, MIB, bytes(MIB), sample_ids=["s"]), pb.LocalWriteResponse).put.size_bytes == MIB
    reason, message = peer.refused(PUT, put(2, MIB + 1, bytes(MIB + 1)))
    assert (reason, "at most 1048576" in message) == ("MALFORMED_STREAM", True)
    assert host.used == ROW_BYTES + MIB
    assert len(peer.call(READ, read(3, "s", inline_bytes=(1 << 32) - 1), pb.LocalReadResponse).values) == MIB


def test_reads_over_1_mib_are_leased_whatever_they_ask_for(host: Host) -> None:
    peer = host.join()
    peer.call(PUT, put(1, MIB + 1, sample_ids=["s"]), pb.LocalWriteResponse)
    finish(peer, 1)
    response = peer.call(READ, read(2, "s", inline_bytes=(1 << 32) - 1), pb.LocalReadResponse)
    assert sum(size for _, size in runs_of(response.lease)) == MIB + 1


def test_a_read_of_too_many_pieces_is_refused_by_name(host: Host) -> None:
    """Rows in an order of their own lie in as many runs as there are values."""
    rows, fields = 65_536, [f"f{number}" for number in range(21)]
    host.client.register_partition("wide", fields, 0, ["train"])
    ids = [str(row) for row in range(rows)]
    host.client.put_samples(ids, "wide", {name: torch.zeros(rows, 2, dtype=torch.uint8) for name in fields})
    peer = host.join()
    request = plane_pb.ReadColumnsRequest(partition_id="wide", sample_ids=ids[::-1], fields=fields)
    reason, message = peer.refused(READ, pb.LocalReadRequest(request=request, handle=1))
    assert (reason, "one read may have 262144 (max_read_pieces): read fewer rows" in message) == ("LIMIT_REACHED", True)
    request.sample_ids[:] = ids
    peer.call(READ, pb.LocalReadRequest(request=request, handle=2), pb.LocalReadResponse)
    host.let_go(1, 2)
    host.client.drop_partition("wide")
    eventually(lambda: host.used == ROW_BYTES)


def test_a_commit_writes_in_one_step_or_two(host: Host) -> None:
    peer = host.join()
    host.client.put_samples(["t"], "p", {"x": host.client.get_samples(["row"], "p", ["x"])["x"]})
    for handle, values in ((1, b"abcde"), (2, None)):
        claimed = peer.call(pb.LOCAL_METHOD_CLAIM_SAMPLES, claim(), plane_pb.ClaimSamplesResponse)
        header = plane_pb.CommitClaimHeader(
            request_id=f"commit-{handle}", claim_id=claimed.claim_id, columns=[column(5 if values else ROW_BYTES)]
        )
        request = pb.LocalCommitRequest(header=header, handle=handle, values=values)
        response = peer.call(COMMIT, request, pb.LocalWriteResponse)
        if values is None:
            fill(host, response.reservation, b"z" * ROW_BYTES)
            response = finish(peer, handle)
        assert response.commit.consumed_rows == 1
    assert (host.stored("row"), host.stored("t")) == (b"abcde", b"z" * ROW_BYTES)
    peer.call(PUT, put(3, ROW_BYTES, bytes(range(256)) * 16, sample_ids=["row"]), pb.LocalWriteResponse)


def test_values_of_puts_that_waited_in_vain_are_not_counted_as_waiting(host: Host) -> None:
    holder, waiter = host.join(), host.join()
    holder.call(PUT, put(1, 7 * MIB), pb.LocalWriteResponse)
    again = put(2, MIB, bytes(MIB))
    again.header.wait_timeout.FromSeconds(0)
    for _ in range(257):  # together more than the values that may wait
        assert waiter.refused(PUT, again)[0] == "NO_SPACE"

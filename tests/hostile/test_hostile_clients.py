"""Clients that break the contract, on purpose or not: the server's memory stays within its bounds, others are
served.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest
import torch
from tests.hostile.crowded import CROWDED, FRAMES, KEPT, SERVICE, part
from tests.hostile.target import Target
from tests.integration.command.conftest import Start
from tests.integration.wire.local_peer import HEAD, MIB

from dataplane_client.client import connect
from dataplane_client.errors import OutOfSpaceError
from rl_dataplane.v1 import local_pb2 as pb

pytestmark = pytest.mark.xdist_group("hostile")


def test_requests_that_are_not_sent_to_their_end_are_bounded_together(target: Target) -> None:
    with target.stays_within(350 * MIB):
        peers = [target.join() for _ in range(20)]
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                peer.socket.sendall(HEAD.pack(20 * MIB, pb.LOCAL_METHOD_READ) + bytes(19 * MIB))
    assert peers[0].ended
    peers[-1].socket.sendall(bytes(MIB))
    assert peers[-1].receive()[0] == pb.LOCAL_OUTCOME_ERROR


@pytest.mark.parametrize("what", CROWDED)
def test_a_message_of_millions_of_parts_is_refused_at_once(target: Target, what: str) -> None:
    method, body = CROWDED[what]()
    peer = target.join()
    with target.stays_within(220 * MIB):  # of 100 MiB for the bytes, as they come, and for protobuf
        reason, _ = peer.refused(method, body)
    assert reason == "INVALID_REQUEST"


def test_a_let_go_of_millions_of_handles_ends_the_connection(target: Target) -> None:
    peer = target.join()
    with target.stays_within(220 * MIB):
        with contextlib.suppress(ConnectionError):
            peer.send(pb.LOCAL_METHOD_LET_GO, part(1, b"\x01" * 19 * MIB))
        assert peer.ended


@pytest.mark.parametrize("what", FRAMES)
def test_a_frame_of_millions_of_parts_is_refused_at_once(target: Target, what: str) -> None:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(target.grpc_address, options=options) as channel:
        put: Any = channel.stream_unary(f"/{SERVICE}/PutSamples")
        with target.stays_within(220 * MIB), pytest.raises(grpc.RpcError) as caught:
            put(iter([FRAMES[what]()]), timeout=120)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def frugal(start_for_all: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server with 16 MiB for bookkeeping."""
    address = f"unix://{tmp_path_factory.mktemp('frugal')}/dataplane.sock"
    command = start_for_all("--listen", address, "--bookkeeping", "16MiB")
    with connect(address, timeout_s=200.0) as client:
        target = Target(command.process.pid, address, client)
        yield target
        target.close()


@pytest.mark.parametrize("what", KEPT)
def test_what_clients_make_the_server_keep_is_refused_beyond_the_limit(frugal: Target, what: str) -> None:
    frugal.client.register_partition("kept", ["x"], 0, ["train"])
    with frugal.stays_within(32 * MIB), pytest.raises(OutOfSpaceError, match="--bookkeeping") as caught:
        deque(map(partial(KEPT[what], frugal.client), range(1000)), maxlen=0)
    assert caught.value.reason == "LIMIT_REACHED"
    for partition in frugal.client.partitions():
        frugal.client.drop_partition(partition.partition_id)


def test_answers_of_claims_in_a_loop_are_forgotten_beyond_their_share(frugal: Target) -> None:
    client, rows = frugal.client, 8000
    client.register_partition("kept", ["x"], 0, ["train"])
    client.put_samples([str(row) for row in range(rows)], "kept", {"x": torch.zeros(rows)})
    client.claim("kept", "train", ["x"], rows).release()
    with frugal.stays_within(16 * MIB):
        for _ in range(60):
            client.claim("kept", "train", ["x"], rows).release()
    client.drop_partition("kept")

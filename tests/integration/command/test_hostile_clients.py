"""Clients that break the contract, on purpose or not: the server's memory stays within its bounds, others are
served.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from tests.integration.command.conftest import Command
from tests.integration.wire.local_peer import HEAD, MIB, Lifeline, Peer, read

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import OutOfSpaceError
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb


class Target:
    """A server process, and how its memory and its other clients fare."""

    def __init__(self, command: Command, address: str, client: DataPlaneClient) -> None:
        self.client = client
        self.address = address
        self.path = address.removeprefix("unix://") + ".local"
        self._pid = command.process.pid
        self._opened = contextlib.ExitStack()
        self.lifeline = Lifeline(self.path)
        self._opened.callback(self.lifeline.close)

    def connect(self) -> Peer:
        peer = Peer(self.path)
        self._opened.callback(peer.close)
        return peer

    def join(self) -> Peer:
        peer = self.connect()
        peer.call(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=self.lifeline.attached.session), pb.JoinResponse)
        return peer

    @property
    def own_bytes(self) -> int:
        """Memory of the process, without the arena."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) << 10

    @property
    def busy_s(self) -> float:
        """Processor time of the process, in seconds. No other client waited longer, whatever else the machine does."""
        user, system = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    @contextlib.contextmanager
    def stays_within(self, size_bytes: int) -> Iterator[None]:
        """A block in which the process takes at most so much more memory, and is busy for at most three seconds."""
        before, began, over = self.own_bytes, self.busy_s, threading.Event()
        with ThreadPoolExecutor() as pool:
            most = pool.submit(self._watch_memory, over)
            try:
                yield
                self.client.server_status(timeout_s=120.0)
            finally:
                over.set()
            assert most.result() - before < size_bytes
            assert self.busy_s - began < 3.0

    def _watch_memory(self, over: threading.Event) -> int:
        most = self.own_bytes
        while not over.wait(0.005):
            most = max(most, self.own_bytes)
        return most

    def close(self) -> None:
        self._opened.close()


@pytest.fixture(scope="module")
def target(start_command: Callable[..., Command], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server with a row of 1 MiB."""
    address = f"unix://{tmp_path_factory.mktemp('hostile')}/dataplane.sock"
    command = start_command("--listen", address)
    with connect(address, transport="grpc", timeout_s=20.0) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["row"], "p", {"x": torch.zeros(1, MIB, dtype=torch.uint8)})
        target = Target(command, address, client)
        yield target
        target.close()


# -- requests without end, answers that nobody reads -------------------------------------------------------------------


def test_a_peer_that_reads_no_answers_is_answered_one_by_one(target: Target) -> None:
    body = read(1, inline_bytes=MIB).SerializeToString()
    peer = target.join()
    with target.stays_within(64 * MIB):
        peer.socket.sendall((HEAD.pack(len(body), pb.LOCAL_METHOD_READ) + body) * 300)
    for _ in range(300):
        outcome, answer = peer.receive()
        assert outcome == pb.LOCAL_OUTCOME_UNSPECIFIED
        assert len(answer) > MIB


def test_answers_that_many_peers_do_not_read_are_bounded_together(target: Target) -> None:
    with target.stays_within(350 * MIB):
        peers = [target.join() for _ in range(360)]
        for peer in peers:
            peer.send(pb.LOCAL_METHOD_READ, read(1, inline_bytes=MIB))
    answered = [gets_an_answer(peer) for peer in peers]  # the server may have read them in another order
    assert 0 < sum(answered) < len(peers)


def gets_an_answer(peer: Peer) -> bool:
    try:
        peer.receive()
    except ConnectionError:
        return False
    return True


def test_requests_that_are_not_sent_to_their_end_are_bounded_together(target: Target) -> None:
    with target.stays_within(350 * MIB):
        peers = [target.join() for _ in range(20)]
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                peer.socket.sendall(HEAD.pack(20 * MIB, pb.LOCAL_METHOD_READ) + bytes(19 * MIB))
    assert peers[0].ended
    peers[-1].socket.sendall(bytes(MIB))
    assert peers[-1].receive()[0] == pb.LOCAL_OUTCOME_ERROR


def test_a_peer_without_a_session_may_send_next_to_nothing(target: Target) -> None:
    peer = target.connect()
    with target.stays_within(16 * MIB), contextlib.suppress(ConnectionError):
        peer.socket.sendall(HEAD.pack(20 * MIB, pb.LOCAL_METHOD_JOIN) + bytes(19 * MIB))
    assert peer.ended


# -- messages of millions of parts -------------------------------------------------------------------------------------


def part(number: int, body: bytes) -> bytes:
    """A field of bytes, as protobuf encodes it."""
    size, encoded = len(body), bytearray([number << 3 | 2])
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*encoded, size]) + body


def many(number: int, body: bytes = b"", size_bytes: int = 19 * MIB) -> bytes:
    """A field that is repeated until a message is nearly as long as a message may be."""
    one = part(number, body)
    return one * (size_bytes // len(one))


CROWDED: dict[str, tuple[int, bytes]] = {
    "names of an enum": (pb.LOCAL_METHOD_REGISTER_PARTITION, part(7, part(1, b"x") + part(2, many(1)))),
    "fields of a partition": (pb.LOCAL_METHOD_REGISTER_PARTITION, many(3)),
    "columns": (pb.LOCAL_METHOD_PUT, part(1, many(4))),
    "columns with names": (pb.LOCAL_METHOD_PUT, part(1, many(4, part(1, b"xxxx")))),
    "dimensions of a column": (pb.LOCAL_METHOD_PUT, part(1, part(4, part(4, b"\x01" * 19 * MIB)))),
    "columns of a commit": (pb.LOCAL_METHOD_COMMIT, part(1, many(3))),
    "tags": (pb.LOCAL_METHOD_PUT, part(1, many(5))),
    "tags of one row": (
        pb.LOCAL_METHOD_PUT,
        part(1, part(3, b"s") + part(5, b"\xdf\x00\x00\xff\xff" + b"\xa0\xc0" * 65535)),
    ),
    "ids to put": (pb.LOCAL_METHOD_PUT, part(1, many(3))),
    "ids to read": (pb.LOCAL_METHOD_READ, part(1, many(2))),
    "fields to read": (pb.LOCAL_METHOD_READ, part(1, many(3))),
    "ids to clear": (pb.LOCAL_METHOD_CLEAR_SAMPLES, many(3)),
    "tasks": (pb.LOCAL_METHOD_GET_CONSUMPTION_STATUS, many(2)),
    "fields of a claim": (pb.LOCAL_METHOD_CLAIM_SAMPLES, many(4)),
}


@pytest.mark.parametrize("what", CROWDED)
def test_a_message_of_millions_of_parts_is_refused_at_once(target: Target, what: str) -> None:
    method, body = CROWDED[what]
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


FRAMES = {
    "a header in pieces": many(1),
    "unknown numbers": b"\x18\x01" * (9 * MIB),
    "a header of columns": part(1, many(4)),
    "unknown fields": part(1, b"") + many(3),
}


@pytest.mark.parametrize("what", FRAMES)
def test_a_frame_of_millions_of_parts_is_refused_at_once(target: Target, what: str) -> None:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(target.address.replace("unix://", "unix:"), options=options) as channel:
        put: Any = channel.stream_unary(f"/{SERVICE}/PutSamples")
        with target.stays_within(220 * MIB), pytest.raises(grpc.RpcError) as caught:
            put(iter([FRAMES[what]]), timeout=120)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


SERVICE = plane_pb.DESCRIPTOR.services_by_name["DataPlaneService"].full_name


# -- what the server keeps ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frugal(start_command: Callable[..., Command], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server with 16 MiB for bookkeeping."""
    address = f"unix://{tmp_path_factory.mktemp('frugal')}/dataplane.sock"
    command = start_command("--listen", address, "--bookkeeping", "16MiB")
    with connect(address, timeout_s=20.0) as client:
        target = Target(command, address, client)
        yield target
        target.close()


def put_tags(client: DataPlaneClient, call: int) -> None:
    tags = [{f"metric {number}": call + row + 0.5 for number in range(64)} for row in range(200)]
    client.put_samples([f"{call}-{row}" for row in range(200)], "kept", tags=tags)


def put_ids(client: DataPlaneClient, call: int) -> None:
    client.put_samples([f"{call}-{row}-{'x' * 200}" for row in range(2000)], "kept", tags=[{"v": 1}] * 2000)


def register_enums(client: DataPlaneClient, call: int) -> None:
    names = [f"{call}-{number}-{'x' * 200}" for number in range(1000)]
    client.register_partition(f"kept {call}", ["x"], 0, ["train"], enums={"x": names})


KEPT = {"tags": put_tags, "ids": put_ids, "enums": register_enums}


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

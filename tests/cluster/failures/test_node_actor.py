"""The actor of a node is killed, but not the node: no row is lost, and no byte that a client has goes to another."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tests.cluster.failures.local_cluster import MIB, LocalCluster, pid_of
from tests.cluster.three_nodes import ray
from tests.integration.wire.local_peer import Lifeline, Peer, put, read
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DeadlineError, OutOfSpaceError
from rl_dataplane.v1 import local_pb2 as pb

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]

_ROW_BYTES = 64 << 10


@pytest.fixture
def here(plane: LocalCluster) -> str:
    """The node of this process, which is not the coordinator's."""
    return str(ray.get_runtime_context().get_node_id())


@pytest.fixture
def client(plane: LocalCluster) -> Iterator[DataPlaneClient]:
    """On this node, with a partition p."""
    with connect(plane.address, transport="shm") as client:
        client.register_partition("p", ["x"], 0, ["train"])
        yield client


def test_rows_and_clients_outlive_the_actor(plane: LocalCluster, here: str, client: DataPlaneClient) -> None:
    _put(client, "before")
    claim = client.claim("p", "train", ["x"], 1)
    plane.kill_node_actor(here)
    assert _is_whole(client, "before")
    _put(client, "after")
    assert claim.commit() == 1
    with connect(plane.outside) as other:
        assert _is_whole(other, "before")
        assert _is_whole(other, "after")
        assert other.partition("p").removed_rows.get("lost", 0) == 0


def test_only_reads_of_other_nodes_need_the_actor(plane: LocalCluster, here: str, client: DataPlaneClient) -> None:
    """It is stopped for less time than it may be silent."""
    with connect(plane.outside) as outside:
        _put(outside, "far")
    pid = pid_of(plane.node_actor(here))
    os.kill(pid, signal.SIGSTOP)
    try:
        _put(client, "meanwhile")
        claim = client.claim("p", "train", ["x"], 1)
        assert _is_whole(client, "meanwhile")
        with pytest.raises(DeadlineError):
            client.get_samples(["far"], "p", ["x"], timeout_s=0.2)
        assert claim.commit() == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    assert _is_whole(client, "far")


@pytest.mark.parametrize("dies", ["node actor", "coordinator", "both"])
def test_a_client_that_goes_on_to_fill_its_reservation_damages_no_row(
    plane: LocalCluster, here: str, client: DataPlaneClient, dies: str
) -> None:
    with _filling(plane.where(here)["socket"], 2 * MIB):
        if dies != "coordinator":
            plane.kill_node_actor(here)
        if dies != "node actor":
            plane.kill_coordinator()
        rows = _fill(client)
        assert rows
        assert 2 * MIB + len(rows) * _ROW_BYTES <= 4 * MIB
        assert all(_is_whole(client, row) for row in rows)
    eventually(lambda: _fill(client, "more"))


def test_copies_of_other_nodes_stay_where_a_client_reads_them(
    plane: LocalCluster, here: str, client: DataPlaneClient
) -> None:
    with connect(plane.outside) as outside:
        for number in range(32):
            _put(outside, f"far-{number}")
    lifeline = Lifeline(plane.where(here)["socket"])
    peer = _join(lifeline)
    lease = peer.call(pb.LOCAL_METHOD_READ, read(1, "far-0"), pb.LocalReadResponse).lease
    node = Peer(lifeline.socket.getpeername())
    node.call(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=lifeline.attached.session), pb.JoinResponse)
    fetch = pb.FetchRequest(handle=1, runs=lease)
    lease = node.call(pb.LOCAL_METHOD_FETCH, fetch, pb.FetchResponse).runs
    places = list(zip(*(np.frombuffer(part, "<i8").tolist() for part in (lease.offsets, lease.sizes)), strict=True))
    with mmap.mmap(lifeline.descriptors[0], lifeline.attached.arena_bytes, prot=mmap.PROT_READ) as memory:
        copy = b"".join(memory[offset : offset + size] for offset, size in places)
        assert len(copy) == _ROW_BYTES
        plane.kill_node_actor(here)
        assert all(_is_whole(client, f"far-{number}") for number in range(32))
        assert b"".join(memory[offset : offset + size] for offset, size in places) == copy
    peer.close()
    node.close()
    lifeline.close()

    def keeps_copies() -> int:
        assert _is_whole(client, "far-1")
        return sum(node.cache_used_bytes for node in client.server_status().nodes)

    eventually(keeps_copies)


# -- rows --------------------------------------------------------------------------------------------------------------


def _values(row: str) -> torch.Tensor:
    """Random bytes of the row's own."""
    seed = int.from_bytes(row.encode(), "big") % (1 << 32)
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (1, _ROW_BYTES), np.uint8))


def _put(client: DataPlaneClient, row: str) -> None:
    client.put_samples([row], "p", {"x": _values(row)}, timeout_s=200.0)


def _is_whole(client: DataPlaneClient, row: str) -> bool:
    return torch.equal(client.get_samples([row], "p", ["x"])["x"], _values(row))


def _fill(client: DataPlaneClient, name: str = "row") -> list[str]:
    """Put rows until there is no space. Their ids."""
    rows: list[str] = []
    while True:
        try:
            client.put_samples([f"{name}-{len(rows)}"], "p", {"x": _values(f"{name}-{len(rows)}")}, timeout_s=1.0)
        except OutOfSpaceError:
            return rows
        rows.append(f"{name}-{len(rows)}")


# -- a client made by hand ---------------------------------------------------------------------------------------------


def _join(lifeline: Lifeline) -> Peer:
    """A connection to the coordinator."""
    peer = Peer(socket.create_connection((lifeline.attached.calls_host, lifeline.attached.calls_port)))
    peer.call(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=lifeline.attached.session), pb.JoinResponse)
    return peer


@contextmanager
def _filling(path: str, size_bytes: int) -> Iterator[None]:
    """A block in which a client fills its reservation again and again, whatever becomes of its connections."""
    lifeline = Lifeline(path)
    peer = _join(lifeline)
    lent = peer.call(pb.LOCAL_METHOD_PUT, put(1, size_bytes), pb.LocalWriteResponse).reservation
    offsets, sizes = (np.frombuffer(part, "<i8").tolist() for part in (lent.offsets, lent.sizes))
    ended = threading.Event()

    def fill() -> None:
        with mmap.mmap(lifeline.descriptors[1], lifeline.attached.arena_bytes) as memory:
            while not ended.wait(0.001):
                for offset, size in zip(offsets, sizes, strict=True):
                    memory[offset : offset + size] = b"\xee" * size

    filler = threading.Thread(target=fill)
    filler.start()
    try:
        yield
    finally:
        ended.set()
        filler.join()
        peer.close()
        lifeline.close()

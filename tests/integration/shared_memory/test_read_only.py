"""A client that may not write the memory reads through it, and writes in messages and over gRPC."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from tests.client.cli.reading import run_json
from tests.forked import FORKS, forking
from tests.integration.wire.local_peer import Host, put

from dataplane_client.client import DataPlaneClient, connect
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import local_pb2 as pb

SMALL, LARGE, LONG = 1 << 10, 1 << 20, 64 << 20


@pytest.fixture
def reader(server: ServerThread, listen: str) -> Iterator[DataPlaneClient]:
    """A client of a server that gives no client the right to write; partition p has fields x and y."""
    local = server.server._local
    assert local is not None
    local.may_write = lambda: False
    with connect(listen, timeout_s=200.0, transport="shm") as client:
        client.register_partition("p", ["x", "y"], 0, ["train"])
        yield client


def descriptors(client: DataPlaneClient) -> list[int]:
    found: list[int] = client._transport._local.carrier.arena._descriptors  # type: ignore[union-attr]
    return found


def rows(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (1, size), dtype=torch.uint8)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_values_go_there_and_back(reader: DataPlaneClient, size: int) -> None:
    x, y = rows(size), rows(size)
    reader.put_samples(["s"], "p", {"x": x})
    with reader.claim("p", "train", ["x"], batch_size=1) as claim:
        assert torch.equal(reader.read_columns(claim.meta, ["x"], layout="jagged")["x"], x)
        claim.commit({"y": y})
    assert torch.equal(reader.get_samples(["s"], "p", ["y"])["y"], y)
    assert reader.transport == "shm"


def test_one_descriptor_came_and_it_cannot_be_mapped_for_writing(reader: DataPlaneClient) -> None:
    (only,) = descriptors(reader)
    with pytest.raises(PermissionError):
        mmap.mmap(only, mmap.PAGESIZE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(only, b"x", 0)


def test_such_a_session_is_lent_no_space(reader: DataPlaneClient, server: ServerThread, tmp_path: Path) -> None:
    host = Host(server, f"{tmp_path}/dataplane.sock.local", reader)
    peer = host.join()
    reason, message = peer.refused(pb.LOCAL_METHOD_PUT, put(1, LARGE))
    assert (reason, host.used) == ("INVALID_REQUEST", 0)
    assert "this session may only read the memory: send the values in the message" in message
    peer.call(pb.LOCAL_METHOD_PUT, put(2, SMALL, bytes(SMALL)), pb.LocalWriteResponse)
    host.close()


def test_doctor_says_how_values_travel(reader: DataPlaneClient, listen: str) -> None:
    document = run_json("doctor", "-s", listen)
    (shared,) = [check for check in document["checks"] if check["name"] == "shared memory"]
    assert shared["outcome"] == "ok"
    assert "to this process through it, and larger ones from it over gRPC: 64.0 MiB" in shared["found"]


def limit_memory(more: int) -> None:
    """From now on this process maps at most so many bytes more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + more, resource.RLIM_INFINITY))


def use_what_is_mapped(address: str, answers: Connection) -> None:
    """In a process of its own: put and read where the arena cannot be mapped once more."""
    with connect(address, timeout_s=60.0, transport="shm") as client:
        before = client.get_samples(["long"], "p", ["x"])["x"]  # leaves a buffer for reuse
        assert before.shape == (1, LONG)
        del before
        limit_memory(512 << 20)
        client.put_samples(["s"], "p", {"x": torch.full((1, LARGE), 7, dtype=torch.uint8)})
        limit_memory(32 << 20)
        read = client.get_samples(["long"], "p", ["x"], layout="jagged")["x"]
        answers.send((client.transport, int(read.unbind()[0][-1])))


@FORKS
def test_a_client_that_cannot_map_the_memory_again_writes_over_grpc_and_reads_copies(
    start_server: Callable[..., ServerThread],
) -> None:
    server = start_server(memory_bytes=1 << 30)
    with connect(server.addresses[0], transport="shm", timeout_s=60.0) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        client.put_samples(["long"], "p", {"x": torch.full((1, LONG), 3, dtype=torch.uint8)})
        answers, theirs = multiprocessing.Pipe(duplex=False)
        process = forking().Process(target=use_what_is_mapped, args=(server.addresses[0], theirs))
        process.start()
        theirs.close()
        try:
            assert answers.recv() == ("shm", 3)
        finally:
            process.join()
        assert (client.get_samples(["s"], "p", ["x"])["x"] == 7).all()

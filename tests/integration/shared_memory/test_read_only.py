"""A client that may not write the memory reads through it, and writes in messages and over gRPC."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.client.cli.reading import run_json
from tests.integration.wire.local_peer import Host, put

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import local_pb2 as pb

SMALL, LARGE = 1 << 10, 1 << 20


@pytest.fixture
def reader(server: ServerThread, listen: str) -> Iterator[DataPlaneClient]:
    """A client of a server that gives no client the right to write; partition p has fields x and y."""
    local = server.server._local
    assert local is not None
    local.may_write = lambda: False
    with connect(listen, timeout_s=20.0, transport="shm") as client:
        client.register_partition("p", ["x", "y"], 0, ["train"])
        yield client


def descriptors(client: DataPlaneClient) -> list[int]:
    found: list[int] = client._transport._local._arena._descriptors  # type: ignore[union-attr]
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


async def test_the_asynchronous_client_does_alike(reader: DataPlaneClient, listen: str) -> None:
    sent = rows(LARGE)
    async with await aio.connect(listen, transport="shm") as client:
        await client.put_samples(["a"], "p", {"x": sent})
        assert torch.equal((await client.get_samples(["a"], "p", ["x"]))["x"], sent)
        assert client.transport == "shm"


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

"""One node and the coordinator's server on the test's event loop, and the memory of another node, which is the home of
the coordinator: what clients put over gRPC lies there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dataplane_client._memory.placement import Destination, adjoining
from dataplane_client._memory.shared_arena import SharedArena
from dataplane_client._verbs._async.carriers import AsyncArenaCarrier
from dataplane_client._verbs._async.frame_calls import AsyncFrameCalls
from dataplane_client.client import DataPlaneClient, connect
from dataplane_server.cluster.coordinator.home_arena import HomeArena
from dataplane_server.cluster.coordinator.server import ClusterServer
from dataplane_server.cluster.messages import BytePlace, Registration
from dataplane_server.cluster.node.cache import Cache
from dataplane_server.cluster.node.fetching import Fetching
from dataplane_server.cluster.node.gateway import Gateway
from dataplane_server.cluster.node.line import Membership
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.values import Runs
from dataplane_server.service.lives import next_life
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import data_plane_pb2 as plane_pb

MIB = 1 << 20
CACHE_BYTES = 4 * MIB
NOWHERE = BytePlace("127.0.0.1", 1, b"")


def registration(
    folder: Path, arena: Arena, memory_bytes: int = MIB, former: int = 0, bytes_at: BytePlace = NOWHERE
) -> Registration:
    """Of a node whose arena and socket are in a folder."""
    names = dict.fromkeys(("arena_id", "ray_node", "folder"), str(folder))
    place: dict[str, Any] = {**names, "socket": f"{folder}/socket", "host": "here", "incarnation": ""}
    place |= {"nonce": arena.nonce, "memory_bytes": memory_bytes, "file_bytes": arena.file_bytes}
    return Registration(**place, former=former, bytes_at=bytes_at)


async def cluster_server(
    folder: Path, memory_bytes: int, data: Path | None = None, access: Path | None = None
) -> ClusterServer:
    """A coordinator's server, which is not started yet. data: the directory of its log. access: the access file."""
    limits, home = Limits(memory_bytes=memory_bytes, cluster=True), HomeArena(known=False)
    settings: dict[str, Any] = {} if data is None else {"data_dir": data, "durability": "process"}
    listen = (f"unix://{folder}/grpc.sock",)
    config = ServerConfig(listen, limits=limits, share_memory=False, http=None, access=access, **settings)
    return ClusterServer(config, home, await next_life(config, threading.Event(), home))


class Elsewhere:
    """Fetches from the other node's arena. calls: node, offsets and sizes of each. error: raised instead. go: set to
    let fetches go on.
    """

    def __init__(self, arena: Arena) -> None:
        self.calls: list[tuple[int, list[int], list[int]]] = []
        self.error: Refusal | None = None
        self.go = asyncio.Event()
        self.go.set()
        self._arena = arena

    async def take(self, node: int, runs: Runs, into: Sequence[memoryview]) -> None:
        self.calls.append((node, runs.offsets.tolist(), runs.sizes.tolist()))
        await self.go.wait()
        if self.error is not None:
            raise self.error
        data = b"".join(map(self._arena.view, runs))
        for view in into:
            view[:], data = data[: len(view)], data[len(view) :]
        assert not data


class Node:
    """A node with a budget of 1 MiB and a cache behind it."""

    def __init__(self, folder: Path, elsewhere: Elsewhere, server: ClusterServer, port: int) -> None:
        folder.mkdir()
        self.elsewhere = elsewhere
        self.server = server
        self.path = folder / "socket"
        self.arena = Arena(MIB + CACHE_BYTES, shared=True, file=folder / "arena")
        self.cache = Cache(MIB, CACHE_BYTES)
        self.fetching = Fetching(self.arena, self.cache, elsewhere.take)
        self.gateway = Gateway(self.arena, self.cache, self.fetching)
        self.gateway.listen_at(self.path, None)
        member = server.add_node(registration(folder, self.arena), None)
        self.membership = Membership("127.0.0.1", port, member.secret, member.number)

    @property
    def sessions(self) -> int:
        """Of this node, at the coordinator."""
        return self.server.server.metrics.attached_clients

    @property
    def orphans(self) -> tuple[bytes, ...]:
        return self.server._endpoint.orphans(self.membership.node)

    async def attach(self) -> AsyncFrameCalls:
        """A client of this node."""
        return AsyncFrameCalls("node 1", AsyncArenaCarrier(await self.map()))

    async def map(self) -> SharedArena:
        return await asyncio.to_thread(partial(SharedArena, str(self.path), self.arena.nonce))


@pytest.fixture
def data() -> Path | None:
    """The directory of the coordinator's log: it has none."""
    return None


@pytest.fixture
async def coordinator(tmp_path: Path, data: Path | None) -> AsyncIterator[tuple[ClusterServer, int, Arena]]:
    """Its server, the port of its calls, and the memory of its own node, which has the number 1."""
    home = tmp_path / "home"
    home.mkdir()
    server, arena = await cluster_server(tmp_path, 16 * MIB, data), Arena(16 * MIB, shared=True, file=home / "arena")
    port = server.recover("127.0.0.1")
    server.make_home(server.add_node(registration(home, arena, 16 * MIB), None))
    await server.server.start()
    yield server, port, arena
    if not server.plane.totals().draining:  # the test may have stopped it
        await server.stop(0.0)
    server.plane.check_invariants()
    arena.close()


@pytest.fixture
async def producer(coordinator: tuple[ClusterServer, int, Arena]) -> AsyncIterator[DataPlaneClient]:
    """A client over gRPC. Partition p has rows s0 to s7 with 1000 numbers each in field x."""
    client = await asyncio.to_thread(partial(connect, coordinator[0].server.addresses[0], transport="grpc"))
    await asyncio.to_thread(client.register_partition, "p", ["x"], 8, ["train"])
    await asyncio.to_thread(client.put_samples, [f"s{i}" for i in range(8)], "p", {"x": rows()})
    yield client
    await asyncio.to_thread(client.close)


def rows() -> torch.Tensor:
    return torch.from_numpy(np.arange(8000, dtype=np.int64).reshape(8, 1000))


@pytest.fixture
async def node(
    coordinator: tuple[ClusterServer, int, Arena], producer: DataPlaneClient, tmp_path: Path
) -> AsyncIterator[Node]:
    server, port, arena = coordinator
    node = Node(tmp_path / "node", Elsewhere(arena), server, port)
    node.gateway.join(node.membership)
    await node.gateway.link()
    yield node
    await node.gateway.close()
    await node.fetching.close()
    node.arena.close()


def arena_of(client: AsyncFrameCalls) -> SharedArena:
    return cast("AsyncArenaCarrier", client.carrier).arena


async def read(client: AsyncFrameCalls, *numbers: int, views: bool = False) -> npt.NDArray[np.int64]:
    """Field x of rows, one after another."""
    ids = [f"s{number}" for number in numbers]
    request = plane_pb.ReadColumnsRequest(partition_id="p", sample_ids=ids, fields=["x"])
    (column,) = await client.read(request, Destination(adjoining, views=views), 20.0)
    return column.values.view(np.int64)

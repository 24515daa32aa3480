"""One node: its arena and gateway on the test's event loop, and behind the relay an ordinary server in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.cluster.node.relay_server import RelayServer

from dataplane_client._memory.placement import Destination, adjoining
from dataplane_client._memory.shared_arena import SharedArena
from dataplane_client._verbs._async.local_calls import AsyncLocalCalls
from dataplane_client.client import DataPlaneClient, connect
from dataplane_server.cluster.node.cache import Cache
from dataplane_server.cluster.node.fetching import Fetching
from dataplane_server.cluster.node.gateway import Gateway
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.values import Runs
from dataplane_server.storage.arena import Arena
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2 as plane_pb

MIB = 1 << 20
CACHE_BYTES = 4 * MIB


class Elsewhere:
    """Fetches from the server's arena. calls: node, offsets and sizes of each. error: raised instead. go: set to let
    fetches go on.
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

    def __init__(self, folder: Path, elsewhere: Elsewhere, relay: RelayServer) -> None:
        self.elsewhere = elsewhere
        self.relay = relay
        self.path = folder / "node.sock"
        self.arena = Arena(MIB + CACHE_BYTES, shared=True)
        self.cache = Cache(MIB, CACHE_BYTES)
        self.fetching = Fetching(self.arena, self.cache, elsewhere.take)
        self.gateway = Gateway(self.arena, self.cache, self.fetching)

    async def attach(self, calls_at: tuple[str, int] | None = None) -> AsyncLocalCalls:
        """A client of this node. calls_at: where it makes calls but reads; None for the node, too."""
        arena = await asyncio.to_thread(partial(SharedArena, str(self.path), self.arena.nonce))
        arena.calls_at = calls_at
        return AsyncLocalCalls("node 1", arena)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    limits = Limits(memory_bytes=16 * MIB)
    server = ServerThread(ServerConfig(listen=(f"unix://{tmp_path}/server.sock",), limits=limits))
    yield server
    server.stop()


@pytest.fixture
def producer(server: ServerThread) -> Iterator[DataPlaneClient]:
    """A client of the server itself. Partition p has rows s0 to s7 with 1000 numbers each in field x."""
    with connect(server.addresses[0]) as client:
        client.register_partition("p", ["x"], 8, ["train"])
        client.put_samples([f"s{i}" for i in range(8)], "p", {"x": rows()})
        yield client


def rows() -> torch.Tensor:
    return torch.from_numpy(np.arange(8000, dtype=np.int64).reshape(8, 1000))


@pytest.fixture
async def node(server: ServerThread, producer: DataPlaneClient, tmp_path: Path) -> AsyncIterator[Node]:
    relay = RelayServer(f"{tmp_path}/server.sock.local")
    node = Node(tmp_path, Elsewhere(server.server._arena), relay)
    node.gateway.listen(node.path)
    node.gateway.use(await relay.start())
    yield node
    await node.gateway.close()
    await node.fetching.close()
    with contextlib.suppress(TimeoutError):
        await relay.kill()
    node.arena.close()


async def read(client: AsyncLocalCalls, *numbers: int, views: bool = False) -> npt.NDArray[np.int64]:
    """Field x of rows, one after another."""
    ids = [f"s{number}" for number in numbers]
    request = plane_pb.ReadColumnsRequest(partition_id="p", sample_ids=ids, fields=["x"])
    (column,) = await client.read(request, Destination(adjoining, views=views), 20.0)
    return column.values.view(np.int64)


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for what another process or thread is about to do."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)

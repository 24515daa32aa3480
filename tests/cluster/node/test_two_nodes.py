"""Two nodes and the coordinator's server on one event loop: clients of each node read what those of the other put."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.cluster.node.conftest import MIB, cluster_server, registration
from tests.ranks import refused_port
from tests.waiting import soon

from dataplane_client import Credentials, aio
from dataplane_client._connect.locator import NodePlace
from dataplane_client.errors import CorruptedError
from dataplane_client.records.meta import KVBatchMeta
from dataplane_server.cluster.coordinator.server import ClusterServer
from dataplane_server.cluster.node.byte_lines import ByteLines
from dataplane_server.cluster.node.cache import Cache
from dataplane_server.cluster.node.fetching import Fetching
from dataplane_server.cluster.node.gateway import Gateway
from dataplane_server.cluster.node.line import Membership
from dataplane_server.cluster.node.port import NodePort
from dataplane_server.core.calls.values import Runs
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb


class Node:
    """What a node actor has, but for Ray. number: 0 until it has registered."""

    number = 0

    def __init__(self, folder: Path, others: dict[int, Node]) -> None:
        folder.mkdir()
        self.folder = folder
        self.others = others
        self.arena = Arena(2 * MIB, shared=True, file=folder / "arena")
        cache = Cache(MIB, MIB)
        self.fetching = Fetching(self.arena, cache, self._take)
        self.gateway = Gateway(self.arena, cache, self.fetching)
        self.gateway.listen_at(folder / "socket", None)
        self.port, self.lines = NodePort(lambda number: self.arena if number == self.number else None), ByteLines()
        self.bytes_at = self.port.open("127.0.0.1")

    async def _take(self, node: int, runs: Runs, into: Sequence[memoryview]) -> None:
        await self.lines.read(self.others[node].bytes_at, node, runs, into)

    async def register(self, server: ClusterServer, port: int) -> None:
        told = registration(self.folder, self.arena, bytes_at=self.bytes_at)
        member = server.add_node(told, None)
        self.number, self.others[member.number] = member.number, self
        self.gateway.join(Membership("127.0.0.1", port, member.secret, member.number))
        await self.gateway.link()

    async def connect(self, server: ClusterServer, credentials: Credentials | None = None) -> aio.AsyncDataPlaneClient:
        """A client on this node."""
        address = server.server.addresses[0]
        client = await aio.connect(address, timeout_s=120.0, credentials=credentials)
        client._transport._locator.place = NodePlace(address, f"{self.folder}/socket", self.arena.nonce)
        client._transport._is_chosen = False
        return client

    async def close(self) -> None:
        await self.gateway.close()
        await asyncio.gather(self.fetching.close(), self.lines.close(), self.port.close())
        self.arena.close()


class Cluster:
    def __init__(self, server: ClusterServer, nodes: list[Node], clients: list[aio.AsyncDataPlaneClient]) -> None:
        self.server = server
        self.nodes = nodes
        self.clients = clients

    async def put(self, node: int, sample_id: str, first: int) -> None:
        """Put a row with 1000 numbers from first on, on a node."""
        values = torch.arange(first, first + 1000)[None]
        await self.clients[node].put_samples([sample_id], "p", {"x": values})

    async def claimed(self) -> KVBatchMeta:
        """All rows."""
        claim = await self.clients[1].claim("p", "train", ["x"], 1)
        return claim.meta

    async def read(self, node: int, *sample_ids: str) -> list[int]:
        """The first number of each row."""
        values = (await self.clients[node].get_samples(list(sample_ids), "p", ["x"], layout="auto"))["x"]
        assert torch.equal(values, values[:, :1] + torch.arange(1000))
        return [int(row[0]) for row in values]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as closing:
        server = await cluster_server(tmp_path, MIB)
        port = server.recover("127.0.0.1")
        closing.push_async_callback(server.stop, 0.5)
        others: dict[int, Node] = {}
        nodes = [Node(tmp_path / name, others) for name in ("a", "b")]
        for node in nodes:
            closing.push_async_callback(node.close)
            await node.register(server, port)
        server.make_home(next(iter(server.members)))
        await server.server.start()
        clients = [await closing.enter_async_context(await node.connect(server)) for node in nodes]
        await clients[0].register_partition("p", ["x"], 0, ["train"])
        yield Cluster(server, nodes, clients)
        server.plane.check_invariants()


async def test_rows_are_read_from_wherever_they_are(cluster: Cluster) -> None:
    await asyncio.gather(*(cluster.put(i % 2, f"s{i}", 10 * i) for i in range(6)))
    for reader in (0, 1, 1):
        assert await cluster.read(reader, *(f"s{i}" for i in range(6))) == [10 * i for i in range(6)]
    assert [node.fetching.fetched_bytes for node in cluster.nodes] == [3 * 8000] * 2
    assert [node.fetching.fetches for node in cluster.nodes] == [1, 1]


async def test_a_node_fetches_what_it_will_read_from_a_node_that_is_up(cluster: Cluster) -> None:
    leases: list[bytes] = []
    source, reader = cluster.server.members
    reader.actor, reader.heard_at = SimpleNamespace(prefetch=SimpleNamespace(remote=leases.append)), float("inf")
    for row, source.heard_at in (("of a node that hangs", float("-inf")), ("s", float("inf"))):
        values = {"x": torch.arange(7, 1007)[None]}
        await cluster.clients[0].put_samples([row], "p", values, read_on=reader.registration.ray_node)
    await cluster.nodes[1].fetching.place(pb.ArenaRuns.FromString(*leases), reader.number)
    assert await cluster.read(1, "s") == [7]
    assert cluster.nodes[1].fetching.fetches == 1


async def test_status_and_metrics_tell_of_the_memory_of_all_nodes(cluster: Cluster) -> None:
    await cluster.put(0, "s", 1)
    status = await cluster.clients[0].server_status()
    assert (status.memory_used_bytes, status.memory_budget_bytes, status.largest_free_bytes) == (8000, 2 * MIB, MIB)
    metrics = b"".join(cluster.server.server.metrics.turns()).decode()
    assert f"dataplane_memory_budget_bytes {2 * MIB}\n" in metrics
    assert f"dataplane_memory_largest_free_bytes {2 * MIB - 8000}\n" in metrics


async def test_a_row_that_was_replaced_is_read_anew(cluster: Cluster) -> None:
    for first in (100, 200, 300):
        await cluster.put(0, "s", first)
        assert await cluster.read(1, "s") == [first]


async def test_a_lease_ends_with_the_last_view(cluster: Cluster) -> None:
    await cluster.put(0, "s", 1)
    views = await cluster.clients[1].read_columns(await cluster.claimed(), ["x"], layout="auto")
    await cluster.clients[0].clear_samples(None, "p")
    assert cluster.server.plane.totals().memory_used_bytes == 8000
    assert views["x"][0, 0] == 1
    del views
    await soon(lambda: not cluster.server.plane.totals().memory_used_bytes)


@pytest.mark.parametrize("place", ["where it was put", "in the copy of the reader's node"])
async def test_a_byte_that_changes_on_a_node_is_refused_by_name(cluster: Cluster, place: str) -> None:
    writer, reader = cluster.clients
    await writer.register_partition("hashed", ["x"], 0, ["train"], digests=True)
    values = torch.arange(5000, 6000)[None]
    await writer.put_samples(["s1"], "hashed", {"x": values})
    if place != "where it was put":
        assert torch.equal((await reader.get_samples(["s1"], "hashed", ["x"]))["x"], values)
    memory = cluster.nodes[place != "where it was put"].arena.memory
    memory[bytes(memory).index(values.numpy().tobytes()) + 4000] ^= 1
    with pytest.raises(CorruptedError, match="'hashed', sample 's1', field 'x'"):
        await reader.get_samples(["s1"], "hashed", ["x"])


async def test_a_client_that_cannot_reach_the_coordinator_uses_grpc(cluster: Cluster) -> None:
    await cluster.put(0, "s", 7)
    node = cluster.nodes[1]
    assert node.gateway.membership is not None
    with refused_port() as port:
        node.gateway.membership = replace(node.gateway.membership, port=port)
        async with await node.connect(cluster.server) as client:
            values = (await client.get_samples(["s"], "p", ["x"], layout="auto"))["x"]
            assert int(values[0, 0]) == 7
            assert client.transport == "grpc"

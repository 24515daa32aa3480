"""With an access file, a request id of a client is the same request through its node and over gRPC, and no other's."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cluster.node.conftest import MIB, cluster_server
from tests.cluster.node.test_two_nodes import Node

from dataplane_client import Credentials, aio
from dataplane_client._memory.shared_arena import SharedArena
from dataplane_client._verbs._async.carriers import AsyncArenaCarrier
from dataplane_client._verbs._async.frame_calls import AsyncFrameCalls
from dataplane_client.errors import PreconditionError
from dataplane_server.cluster.coordinator.server import ClusterServer
from rl_dataplane.v1 import data_plane_pb2 as pb

_NAMES = ("trainer", "rater")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[ClusterServer, Node]]:
    access = tmp_path / "access.json"
    callers = [{"name": name, "tokens": [_hashed(name)], "roles": {"admin": [""]}} for name in _NAMES]
    access.write_text(json.dumps({"callers": callers}))
    async with contextlib.AsyncExitStack() as closing:
        server = await cluster_server(tmp_path, MIB, access=access)
        port = server.recover("127.0.0.1")
        closing.push_async_callback(server.stop, 0.5)
        node = Node(tmp_path / "a", {})
        closing.push_async_callback(node.close)
        await node.register(server, port)
        server.make_home(next(iter(server.members)))
        await server.server.start()
        yield server, node


def _hashed(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


async def test_a_put_through_a_node_is_the_same_over_grpc_and_another_for_another_caller(
    cluster: tuple[ClusterServer, Node],
) -> None:
    """As one whose connection to the coordinator broke before it had the answer."""
    server, node = cluster

    async def put(name: str, sample_id: str, *, on_node: bool) -> None:
        if on_node:
            client = await node.connect(server, Credentials(token=name))
        else:
            target, credentials = server.server.addresses[0], Credentials(token=name)
            client = await aio.connect(target, transport="grpc", timeout_s=200.0, credentials=credentials)
        async with client:
            await client.register_partition("p", ["x"], 0, ["train"])
            await client.put_samples([sample_id], "p", {"x": [1]}, request_id="same")
            assert client.transport == ("shm" if on_node else "grpc")

    await put("trainer", "mine", on_node=True)
    with pytest.raises(PreconditionError, match="same"):
        await put("trainer", "other", on_node=False)
    await put("trainer", "mine", on_node=False)
    await put("rater", "theirs", on_node=True)
    with pytest.raises(PreconditionError, match="same"):
        await put("rater", "mine", on_node=False)


async def test_a_client_of_a_node_is_no_caller_whose_credentials_it_has_not(
    cluster: tuple[ClusterServer, Node],
) -> None:
    server, node = cluster
    caller, other = _NAMES
    async with await node.connect(server, Credentials(token=caller)) as client:
        status = await client._transport._grpc.unary("GetServerStatus", pb.GetServerStatusRequest(), 200.0)
    proof = status.caller_proof
    arena = await asyncio.to_thread(SharedArena, f"{node.folder}/socket", node.arena.nonce)
    for forged in (proof.replace(caller.encode(), other.encode()), proof[1:], other.encode()):
        with pytest.raises(ConnectionResetError):
            await AsyncFrameCalls("this node", AsyncArenaCarrier(arena, forged)).reach(200.0)
    calls = AsyncFrameCalls("this node", AsyncArenaCarrier(arena, proof))
    await calls.reach(200.0)
    await calls.close()

"""Actors of two of Ray's nodes, both on this machine, and a coordinator that knows them and opens sessions, no more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cluster.three_nodes import ThreeNodes, on_node, ray
from xxhash import xxh3_128_digest

from dataplane_client._memory.shared_arena import SharedArena
from dataplane_server.cluster.messages import Beat, BeatAnswer, BytePlace, Registered, Registration
from dataplane_server.cluster.node.actor import NodeActor, NodeOptions
from dataplane_server.cluster.node.byte_lines import ByteLines
from dataplane_server.core.calls.values import Copy, Runs
from dataplane_server.core.rows.regions import NODE_SHIFT
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import HEAD

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray")]

MIB = 1 << 20
_GREETING = HEAD.pack(0, pb.LOCAL_OUTCOME_UNSPECIFIED)  # bytes, as Ray pickles what a class uses


class Coordinator:
    """Knows nodes by the arenas that register, from 1 up."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._places: dict[int, BytePlace] = {}
        self._known: set[str] = set()
        self._registrations: list[Registration] = []
        self._beats: list[Beat] = []
        self._told = asyncio.Condition()

    async def register(self, registration: Registration) -> Registered:
        number = self._numbers.setdefault(registration.arena_id, len(self._numbers) + 1)
        self._known.add(registration.arena_id)
        self._places[number] = registration.bytes_at
        lines = await asyncio.start_server(self._hear, "127.0.0.1", 0)
        await self._note(self._registrations, registration)
        return Registered(number, b"secret", "127.0.0.1", lines.sockets[0].getsockname()[1], self._places, "")

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(_GREETING)
        await reader.read()

    async def beat(self, beat: Beat) -> BeatAnswer:
        await self._note(self._beats, beat)
        return BeatAnswer(beat.arena_id in self._known, self._places)

    async def _note(self, told: list[Any], what: Any) -> None:
        async with self._told:
            told.append(what)
            self._told.notify_all()

    async def registered(self, times: int) -> list[Registration]:
        """The registrations, once there are as many as asked for."""
        async with self._told:
            await self._told.wait_for(lambda: len(self._registrations) >= times)
            return self._registrations

    async def next_beat(self, arena_id: str) -> Beat:
        async with self._told:
            before = len(self._beats)
            await self._told.wait_for(lambda: arena_id in [beat.arena_id for beat in self._beats[before:]])
            return next(beat for beat in self._beats[before:] if beat.arena_id == arena_id)

    async def forget(self) -> None:
        self._known.clear()


class Nodes:
    """Two actors and the coordinator. actors: in the order of their numbers."""

    def __init__(self, folder: Path, ray_nodes: list[str]) -> None:
        self.folder = folder
        options = {"name": "coordinator", **on_node(ray_nodes[0])}
        self.coordinator: Any = ray.remote(Coordinator).options(**options).remote()
        self.actors: list[Any] = []
        for number, ray_node in enumerate(ray_nodes, 1):
            chosen = NodeOptions("coordinator", MIB, 4 * MIB, folder=f"{folder}/{number}")
            actor = ray.remote(NodeActor).options(name=f"node-{number}", max_restarts=-1, **on_node(ray_node))
            self.actors.append(actor.remote(chosen))
            self.registered(number)

    def registered(self, times: int) -> list[Registration]:
        found: list[Registration] = ray.get(self.coordinator.registered.remote(times), timeout=60)
        return found

    def next_beat(self, node: int) -> Beat:
        arena_id = self.registered(2)[node - 1].arena_id
        beat: Beat = ray.get(self.coordinator.next_beat.remote(arena_id), timeout=60)
        return beat

    def write(self, node: int, offset: int, data: bytes) -> None:
        with Path(f"{self.folder}/{node}/arena").open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def bytes_of(self, node: int, *runs: tuple[int, int]) -> bytes:
        offsets, sizes = np.array(runs, np.int64).T
        found = bytearray(sizes.sum())
        asyncio.run(self._take(node, Runs(offsets, sizes), found))
        return bytes(found)

    async def _take(self, node: int, runs: Runs, into: bytearray) -> None:
        all_registrations = self.registered(2)
        arena_id = all_registrations[node - 1].arena_id
        place = [one.bytes_at for one in all_registrations if one.arena_id == arena_id][-1]
        lines = ByteLines()
        await lines.read(place, node, runs, [memoryview(into)])
        await lines.close()


@pytest.fixture
def nodes(three_nodes: ThreeNodes, tmp_path: Path) -> Iterator[Nodes]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    nodes = Nodes(tmp_path, three_nodes.nodes[:2])
    yield nodes
    for actor in (*nodes.actors, nodes.coordinator):
        ray.kill(actor)


def test_an_arena_registers_once_and_beats(nodes: Nodes) -> None:
    first, second = nodes.registered(2)
    assert (first.memory_bytes, first.file_bytes, first.former) == (MIB, 5 * MIB, 0)
    assert first.arena_id != second.arena_id
    assert nodes.next_beat(1).clients == 0
    assert len(nodes.registered(2)) == 2


def test_a_copy_to_a_place_outside_the_arena_is_refused_and_nothing_is_written(nodes: Nodes) -> None:
    nodes.write(1, 0, b"source")
    end = 5 * MIB  # with the cache
    for target in (end - 3, end):
        copies = [
            Copy((1 << NODE_SHIFT), (1 << NODE_SHIFT) + 64, 6),
            Copy((1 << NODE_SHIFT), (1 << NODE_SHIFT) + target, 6),
        ]
        with pytest.raises(ValueError, match=f"{end} bytes"):
            ray.get(nodes.actors[0].copy.remote(b"secret", copies), timeout=60)
    assert nodes.bytes_of(1, (64, 6)) == bytes(6)


def test_an_actor_registers_again_where_it_is_not_known(nodes: Nodes) -> None:
    ray.get(nodes.coordinator.forget.remote())
    again = nodes.registered(4)[2:]
    assert {one.arena_id for one in again} == {one.arena_id for one in nodes.registered(2)[:2]}


def test_nodes_give_bytes_copy_them_and_take_digests(nodes: Nodes) -> None:
    large = np.random.default_rng(0).bytes(3 * MIB)
    nodes.write(1, 100, b"abcdef")
    nodes.write(2, MIB, large)
    assert nodes.bytes_of(1, (103, 3), (100, 2)) == b"defab"
    assert nodes.bytes_of(2, (MIB, 2 * MIB), (3 * MIB, MIB)) == large
    first, second = 1 << NODE_SHIFT, 2 << NODE_SHIFT
    copies = [(first + 100, second + 10, 3), (second + MIB, second + 13, 4)]
    ray.get(nodes.actors[1].copy.remote(b"secret", copies), timeout=60)
    assert nodes.bytes_of(2, (10, 7)) == b"abc" + large[:4]
    nodes.write(1, MIB, large[::-1])
    for size in (MIB // 10, MIB // 2 + 1, 3 * MIB):
        ray.get(nodes.actors[1].copy.remote(b"secret", [(first + MIB, second + MIB, size)]), timeout=60)
        assert nodes.bytes_of(2, (MIB, size)) == large[::-1][:size]
    digests = ray.get(nodes.actors[0].digests.remote(np.array([100, 102]), np.array([2, 4])), timeout=60)
    assert digests == xxh3_128_digest(b"ab") + xxh3_128_digest(b"cdef")


def test_a_killed_actor_finds_its_arena_and_tells_of_its_clients(nodes: Nodes) -> None:
    nodes.write(1, 50, b"kept")
    before = nodes.registered(2)[0]
    client = SharedArena(before.socket, before.nonce)
    assert client.readable[50:54].tobytes() == b"kept"
    assert nodes.next_beat(1).clients == 1
    ray.kill(nodes.actors[0], no_restart=False)
    after = nodes.registered(3)[2]
    assert (after.arena_id, after.former) == (before.arena_id, 1)
    assert after.nonce != before.nonce  # clients attach again
    assert nodes.bytes_of(1, (50, 4)) == b"kept"
    del client
    while nodes.next_beat(1).former:
        pass


def test_an_actor_that_is_stopped_leaves_nothing(nodes: Nodes) -> None:
    ray.get(nodes.actors[0].stop.remote(), timeout=60)
    ray.get(nodes.actors[1].stop.remote(True), timeout=60)
    assert [folder.name for folder in nodes.folder.iterdir()] == ["2"]

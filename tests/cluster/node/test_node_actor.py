"""A node's actor in this process, without Ray: what it tells its coordinator, copies, keeps and frees.

Also while another node, or the port of the coordinator, does not answer. `tests/cluster/failures` kills actors.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.cluster.node.conftest import MIB
from tests.waiting import soon
from xxhash import xxh3_128_digest

from dataplane_server.cluster.messages import Beat, BeatAnswer, BytePlace, Mirrored, Registered, Registration
from dataplane_server.cluster.node import actor as module
from dataplane_server.cluster.node import line
from dataplane_server.cluster.node.actor import NodeActor, NodeOptions
from dataplane_server.cluster.node.folder import default_folder, sweep
from dataplane_server.cluster.node.gateway import Gateway
from dataplane_server.cluster.node.line import Membership
from dataplane_server.cluster.node.port import NodePort
from dataplane_server.core.calls.values import Copy, Run, Runs
from dataplane_server.core.rows.regions import NODE_SHIFT
from dataplane_server.storage.arena import Arena

RUN = Runs.of([Run(0, 1)])
LIVE = NodeActor._live


def new_actor(tmp_path: Path, cache_bytes: int = MIB) -> NodeActor:
    return NodeActor(NodeOptions("coordinator", MIB, cache_bytes, folder=str(tmp_path / "node")))


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeActor:
    monkeypatch.setattr(module, "this_node", lambda: "here")
    monkeypatch.setattr(module, "this_address", lambda: "127.0.0.1")
    monkeypatch.setattr(NodeActor, "_live", lambda self: asyncio.sleep(600))
    return new_actor(tmp_path)


@pytest.mark.parametrize("cache_bytes", [MIB, MIB // 2, 4 * MIB])
async def test_values_that_were_kept_are_there_whatever_the_cache_is_to_be(
    node: NodeActor, tmp_path: Path, cache_bytes: int
) -> None:
    node._arena.view(Run(0, 6))[:] = b"values"
    await node.stop(keep=True)
    again = new_actor(tmp_path, cache_bytes)
    digests = await again.digests((1 << NODE_SHIFT) + np.array([0, 2]), np.array([6, 4]))
    assert digests == xxh3_128_digest(b"values") + xxh3_128_digest(b"lues")
    await again.stop()
    assert not node._folder.path.exists()


async def test_it_copies_bytes_of_its_own_and_of_others_and_nothing_to_places_outside_the_arena(
    node: NodeActor,
) -> None:
    large, first, second = np.random.default_rng(0).bytes(MIB), 1 << NODE_SHIFT, 2 << NODE_SHIFT
    with closing(Arena(MIB)) as other:
        other.view(Run(0, MIB))[:] = large
        port = NodePort(lambda number: other if number == 1 else None)
        node._others[1] = port.open("127.0.0.1")
        node._gateway.membership = Membership("127.0.0.1", 1, b"secret", 2)
        node._arena.view(Run(MIB, 6))[:] = b"abcdef"
        copies = [Copy(second + MIB, second + 10, 3), Copy(first + 100, second + 13, 4)]
        await node.copy(b"secret", copies)
        assert bytes(node._arena.view(Run(10, 7))) == b"abc" + large[100:104]
        for size in (MIB // 10, MIB // 2 + 1, MIB):
            await node.copy(b"secret", [Copy(first, second + MIB, size)])
            assert bytes(node._arena.view(Run(MIB, size))) == large[:size]
        for target in (2 * MIB - 3, 2 * MIB):  # with the cache
            with pytest.raises(ValueError, match=f"{2 * MIB} bytes"):
                await node.copy(b"secret", [Copy(first, second + 64, 6), Copy(first, second + target, 6)])
        assert bytes(node._arena.view(Run(64, 6))) == bytes(6)
        await node.stop()
        await port.close()


async def test_it_frees_its_memory_before_it_waits_for_the_other(node: NodeActor) -> None:
    """If that takes long, the coordinator kills it."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as hanging, socket.socket() as waiting:
        waiting.connect(hanging.getsockname())  # so others are not even accepted by the kernel
        place = BytePlace("127.0.0.1", hanging.getsockname()[1], b"")
        reading = asyncio.create_task(node._lines.read(place, 2, RUN, [np.empty(1, np.uint8).data]))
        await asyncio.sleep(0.2)
        stopping = asyncio.create_task(node.stop())
        await soon(lambda: not node._folder.arena.exists())
        assert not stopping.done()
        await asyncio.gather(reading, stopping, return_exceptions=True)


async def test_it_registers_without_waiting_for_what_the_other_does_not_give_to_its_mirror(node: NodeActor) -> None:
    """If that takes long, the next coordinator takes the node for lost."""

    async def register(registration: Registration) -> Registered:
        return Registered(1, b"new", "127.0.0.1", 1, {}, "next", mirrors=registration.mirrors)

    node._gateway.membership = Membership("127.0.0.1", 1, b"old", 1)
    await node.make_mirror("m", 2, MIB)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        place = BytePlace("127.0.0.1", hanging.getsockname()[1], b"")
        following = [asyncio.create_task(node.follow(b"old", "m", place, RUN.offsets, RUN.sizes)) for _ in range(99)]
        await soon(lambda: node._mirror_lines._used)
        coordinator = SimpleNamespace(register=SimpleNamespace(remote=register))
        await asyncio.wait_for(node._register(coordinator), 150.0)
    assert await asyncio.gather(*following) == [Mirrored.NO_SOURCE] * 99
    await node.stop()


async def test_it_beats_while_the_coordinators_port_does_not_answer_and_registers_again_where_it_is_not_known(
    node: NodeActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats, registrations = list[tuple[int, int]](), list[Registration]()

    async def register(registration: Registration) -> Registered:
        registrations.append(registration)
        return Registered(1, b"new", "127.0.0.1", hanging.getsockname()[1], {}, "")

    async def beat(said: Beat) -> BeatAnswer:
        beats.append((len(registrations), said.clients))
        return BeatAnswer(len(beats) != 3)

    coordinator = SimpleNamespace(register=SimpleNamespace(remote=register), beat=SimpleNamespace(remote=beat))
    monkeypatch.setattr(module, "_sweep", lambda name: None)
    monkeypatch.setattr(node, "_find_coordinator", lambda: coordinator)
    monkeypatch.setattr(line, "_CONNECT_S", 600.0)
    monkeypatch.setattr(Gateway, "clients", 7)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as hanging, socket.socket() as waiting:
        waiting.connect(hanging.getsockname())
        node._life = asyncio.create_task(LIVE(node))
        await soon(lambda: len(beats) >= 5)
        await node.stop()
    assert beats[:5] == [(1, 7)] * 3 + [(2, 7)] * 2
    first, again = registrations
    assert (first.memory_bytes, first.file_bytes, first.former) == (MIB, 2 * MIB, 0)
    assert again.arena_id == first.arena_id


def test_only_folders_of_this_user_that_no_other_may_write_to_are_removed_with_those_of_ended_nodes(
    tmp_path: Path,
) -> None:
    """Every user may make a link in shared memory, as to the data directory of a server that is stopped."""
    name = secrets.token_hex(8)
    left, linked, shared, alive = (default_folder(name, digit * 8) for digit in "0123")
    kept = tmp_path / "data"
    linked.symlink_to(kept, target_is_directory=True)
    try:
        for folder in (left, kept, shared, alive):
            folder.mkdir()
            for file in ("arena", "log"):
                (folder / file).touch()
        shared.chmod(0o777)
        sweep(name, ["3" * 8])
        assert not left.exists()
        for folder in (kept, shared, alive):
            assert sorted(file.name for file in folder.iterdir()) == ["arena", "log"]
    finally:
        linked.unlink()
        for folder in (left, shared, alive):
            shutil.rmtree(folder, ignore_errors=True)

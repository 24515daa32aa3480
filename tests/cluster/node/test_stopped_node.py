"""A node's actor that is stopped, registers or beats while a node, or the coordinator's port, does not answer."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.cluster.node.conftest import MIB
from tests.waiting import soon

from dataplane_server.cluster.messages import Beat, BeatAnswer, BytePlace, Mirrored, Registered, Registration
from dataplane_server.cluster.node import actor as module
from dataplane_server.cluster.node import line
from dataplane_server.cluster.node.actor import NodeActor, NodeOptions
from dataplane_server.cluster.node.line import Membership
from dataplane_server.core.calls.values import Run, Runs

RUN = Runs.of([Run(0, 1)])
LIVE = NodeActor._live


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeActor:
    monkeypatch.setattr(module, "this_node", lambda: "here")
    monkeypatch.setattr(module, "this_address", lambda: "127.0.0.1")
    monkeypatch.setattr(NodeActor, "_live", lambda self: asyncio.sleep(600))
    return NodeActor(NodeOptions("coordinator", MIB, MIB, folder=str(tmp_path / "node")))


async def test_it_frees_its_memory_before_it_waits_for_the_other(node: NodeActor) -> None:
    """If that takes long, the coordinator kills it."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as hanging, socket.socket() as waiting:
        waiting.connect(hanging.getsockname())  # so others are not even accepted by the kernel
        place = BytePlace("127.0.0.1", hanging.getsockname()[1], b"")
        reading = asyncio.create_task(node._lines.read(place, 2, RUN, [np.empty(1, np.uint8).data]))
        await asyncio.sleep(0.2)
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(1.0)
        assert not stopping.done()
        assert not node._folder.arena.exists()
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


async def test_it_beats_while_the_coordinators_port_does_not_answer(
    node: NodeActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = list[Beat]()

    async def register(registration: Registration) -> Registered:
        return Registered(1, b"new", "127.0.0.1", hanging.getsockname()[1], {}, "")

    async def beat(said: Beat) -> BeatAnswer:
        beats.append(said)
        return BeatAnswer(True)

    coordinator = SimpleNamespace(register=SimpleNamespace(remote=register), beat=SimpleNamespace(remote=beat))
    monkeypatch.setattr(module, "_sweep", lambda name: None)
    monkeypatch.setattr(node, "_find_coordinator", lambda: coordinator)
    monkeypatch.setattr(line, "_CONNECT_S", 600.0)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as hanging, socket.socket() as waiting:
        waiting.connect(hanging.getsockname())
        node._life = asyncio.create_task(LIVE(node))
        await soon(lambda: len(beats) >= 3)
        await node.stop()

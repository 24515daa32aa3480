"""A node's actor that is stopped while a node from which it reads does not answer."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import numpy as np
import pytest
from tests.cluster.node.conftest import MIB

from dataplane_server.cluster.messages import BytePlace
from dataplane_server.cluster.node import actor as module
from dataplane_server.cluster.node.actor import NodeActor, NodeOptions
from dataplane_server.core.calls.values import Run, Runs


async def test_it_frees_its_memory_before_it_waits_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that takes long, the coordinator kills it."""
    monkeypatch.setattr(module, "this_node", lambda: "here")
    monkeypatch.setattr(module, "this_address", lambda: "127.0.0.1")
    monkeypatch.setattr(NodeActor, "_live", lambda self: asyncio.sleep(600))
    node = NodeActor(NodeOptions("coordinator", MIB, MIB, folder=str(tmp_path / "node")))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as hanging, socket.socket() as waiting:
        waiting.connect(hanging.getsockname())  # so others are not even accepted by the kernel
        place = BytePlace("127.0.0.1", hanging.getsockname()[1], b"")
        reading = asyncio.create_task(node._lines.read(place, 2, Runs.of([Run(0, 1)]), [np.empty(1, np.uint8).data]))
        await asyncio.sleep(0.2)
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(1.0)
        assert not stopping.done()
        assert not node._folder.arena.exists()
        await asyncio.gather(reading, stopping, return_exceptions=True)

"""The coordinator looks after its nodes for as long as it lives, whatever Ray answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from dataplane_server.cluster.coordinator import actor as module
from dataplane_server.cluster.coordinator.actor import ClusterOptions, Coordinator
from dataplane_server.cluster.messages import Beat, BeatAnswer
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits


class BusyRay:
    """It answers from the second look on. looks: that it has answered."""

    def __init__(self) -> None:
        self.asked = self.looks = 0

    def alive(self, silent: Collection[str]) -> list[str]:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("Ray is too busy")
        self.looks += 1
        return []


@pytest.mark.parametrize("logged", [False, True])
async def test_a_look_that_fails_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: bool) -> None:
    """With a log, the first look is before the coordinator listens, as it has to know which nodes there are."""
    ray = BusyRay()
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "this_node", lambda: "here")
    monkeypatch.setattr(module, "RayNodes", lambda: ray)
    config = ServerConfig(
        (f"unix://{tmp_path}/grpc",),
        limits=Limits(memory_bytes=1 << 20),
        http=None,
        data_dir=tmp_path / "data" if logged else None,
        durability="process" if logged else "memory",
    )
    coordinator = Coordinator(config, ClusterOptions("c", "127.0.0.1", 1 << 20))
    assert await coordinator.beat(Beat("unknown", 0, (), 0, 0, 0, 0, 0)) == BeatAnswer(False)
    if logged:
        assert ray.looks, "it listened without knowing the nodes"
    deadline = time.monotonic() + 120
    while ray.looks < 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    assert await coordinator.beat(Beat("unknown", 0, (), 0, 0, 0, 0, 0)) == BeatAnswer(False)
    await coordinator.stop()

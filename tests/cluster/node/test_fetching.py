"""Bytes of several nodes in one cache: each read finds its own, in whatever order they come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from dataplane_server.cluster.node.cache import Cache
from dataplane_server.cluster.node.fetching import Fetching
from dataplane_server.core.calls.values import Run, Runs
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb

NODES = 3


class Nodes:
    """Nodes 1 to 3, whose bytes are all their number, and who give them when they are told to."""

    def __init__(self) -> None:
        self.go = {number: asyncio.Event() for number in range(1, NODES + 1)}

    async def take(self, node: int, runs: Runs, into: Sequence[memoryview]) -> None:
        assert sum(map(len, into)) == runs.sizes.sum()
        await self.go[node].wait()
        for view in into:
            view[:] = bytes([node]) * len(view)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
async def test_runs_that_adjoin_in_the_cache_do_not_touch_each_other(order: tuple[int, ...]) -> None:
    arena, cache, nodes = Arena(4096), Cache(1024, 2048), Nodes()
    fetching = Fetching(arena, cache, nodes.take)
    owners, sizes = np.arange(30) % NODES + 1, np.arange(30) % 11 + 1
    lease = pb.ArenaRuns(
        nodes=owners.astype("<u4").tobytes(),
        offsets=(16 * np.arange(30)).astype("<i8").tobytes(),
        sizes=sizes.astype("<i8").tobytes(),
        versions=np.zeros(30, "<i8").tobytes(),
    )
    placed = asyncio.create_task(fetching.place(lease, 0))
    for node in order:
        nodes.go[node].set()
        for _ in range(9):  # turns of the loop, in which the fetch ends
            await asyncio.sleep(0)
    cache.release(await placed)
    places = Runs(np.frombuffer(lease.offsets, "<i8"), sizes)
    assert [set(arena.view(Run(*run))) for run in places] == [{owner} for owner in owners.tolist()]
    arena.close()

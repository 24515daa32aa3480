"""Places for the runs of a read in the arena of the reader's node: fetches what lies on other nodes into the cache.

A read makes one fetch from each other node of which a run is missing; these go on at the same time. A run that another
read is fetching is not fetched again. A fetch belongs to no read: it goes on if its reader leaves, because others may
wait for it, and it holds the space that it fills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np

from dataplane_server.cluster.node.arena_bytes import runs_of
from dataplane_server.cluster.node.cache import Cache, CachedRun, RemoteRun
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Runs
from dataplane_server.core.rows.ranges import merged_runs
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb

Take = Callable[[int, Runs, Sequence[memoryview]], Awaitable[None]]
"""Fills buffers with the bytes of runs of another node, by its number. Refusal NODE_LOST if it cannot be reached."""


class Fetching:
    """Of one node. fetched_bytes, fetches: since the beginning, without those that failed. hit_bytes: of runs that were
    in the cache, or on their way.
    """

    def __init__(self, arena: Arena, cache: Cache, take: Take) -> None:
        self.fetched_bytes = self.fetches = self.hit_bytes = 0
        self._arena = arena
        self._cache = cache
        self._take = take
        self._under_way: dict[CachedRun, asyncio.Task[Refusal | None]] = {}

    async def place(self, lease: pb.ArenaRuns, own_node: int) -> list[CachedRun]:
        """Replace the runs of other nodes in a lease by places in this node's arena. Returns copies that the caller
        holds until it releases them to the cache. Refusal LIMIT_REACHED if they do not fit into the cache, NODE_LOST if
        a node cannot be reached, INVALID_REQUEST for anything but a lease.
        """
        runs = runs_of(lease)
        if {len(lease.versions), 2 * len(lease.nodes)} != {len(lease.sizes)}:
            raise Refusal(Reason.INVALID_REQUEST, "runs: a node and a version are needed for each")
        offsets, sizes = runs.offsets.copy(), runs.sizes
        nodes, versions = np.frombuffer(lease.nodes, "<u4"), np.frombuffer(lease.versions, "<i8")
        if len(sizes) and (offsets.min() < 0 or sizes.min() <= 0):
            raise Refusal(Reason.INVALID_REQUEST, "runs: one has a negative offset, or a size below 1")
        remote = np.flatnonzero(nodes != own_node)
        columns = (column[remote].tolist() for column in (nodes, offsets, sizes, versions))
        wanted = list(map(RemoteRun._make, zip(*columns, strict=True)))
        copies = self._hold(wanted)
        try:
            await self._filled(copies)
        except BaseException:
            self._cache.release(copies)
            raise
        places = {copy.run: copy.offset for copy in copies}
        offsets[remote] = [places[run] for run in wanted]
        lease.offsets = offsets.tobytes()
        lease.ClearField("nodes")
        lease.ClearField("versions")
        return copies

    def _hold(self, runs: Sequence[RemoteRun]) -> list[CachedRun]:
        held = self._cache.hold(runs)
        if held is None:
            size_bytes = sum(run.size_bytes for run in set(runs))
            message = (
                f"this read takes {size_bytes} bytes of other nodes, which do not fit into the node's cache of "
                f"{self._cache.size_bytes} bytes beside what its other clients read; read fewer rows at once"
            )
            raise Refusal(Reason.LIMIT_REACHED, message, cache_bytes=self._cache.size_bytes)
        found, new = held
        self.hit_bytes += sum(copy.run.size_bytes for copy in found)
        self._begin(new)
        return found + new

    def _begin(self, new: list[CachedRun]) -> None:
        """Begin to fill copies, with one fetch for each node."""
        by_place = sorted(new, key=attrgetter("run.node", "run.offset"))
        for node, group in groupby(by_place, attrgetter("run.node")):
            copies = list(group)
            task = asyncio.get_running_loop().create_task(self._fill(node, copies))
            for copy in copies:
                copy.users += 1
                self._under_way[copy] = task

    async def _fill(self, node: int, copies: list[CachedRun]) -> Refusal | None:
        """Why it failed, or None. copies: in the order of the node's places."""
        offsets, sizes, places = (
            np.array(column, np.int64)
            for column in zip(*((copy.run.offset, copy.run.size_bytes, copy.offset) for copy in copies), strict=True)
        )
        try:
            into = [self._arena.view(run) for run in merged_runs(places, sizes)]
            await self._take(node, Runs(offsets, sizes), into)
        except Refusal as refusal:
            self._cache.forget(copies)
            return refusal
        except BaseException:
            self._cache.forget(copies)
            raise
        else:
            self.fetches += 1
            self.fetched_bytes += sum(copy.run.size_bytes for copy in copies)
            return None
        finally:
            for copy in copies:
                del self._under_way[copy]
            self._cache.release(copies)

    async def _filled(self, copies: Iterable[CachedRun]) -> None:
        """Wait for fetches. A caller that is cancelled does not cancel them."""
        tasks = {task for copy in copies if (task := self._under_way.get(copy)) is not None}
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if (refusal := task.result()) is not None:
                raise refusal

    async def close(self) -> None:
        """End fetches under way."""
        tasks = set(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""The actor of a node: it owns the node's arena, serves the node's clients, and gives and takes bytes of other nodes.
It keeps mirrors of other nodes, too, if it is told to.

An actor that is restarted on its node finds the arena's file as its former life left it. It beats as long as it lives;
what the coordinator makes of that is in `cluster.messages`.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from dataplane_server.cluster.messages import BEAT_S, Beat, BeatAnswer, BytePlace, Mirrored, Registered, Registration
from dataplane_server.cluster.node.arena_bytes import are_inside, in_thread_if_long, touch
from dataplane_server.cluster.node.byte_lines import ByteLines
from dataplane_server.cluster.node.cache import Cache
from dataplane_server.cluster.node.fetching import Fetching
from dataplane_server.cluster.node.folder import NodeFolder, default_folder, sweep
from dataplane_server.cluster.node.gateway import Gateway
from dataplane_server.cluster.node.kept_mirrors import KeptMirrors
from dataplane_server.cluster.node.line import Membership
from dataplane_server.cluster.node.port import NodePort
from dataplane_server.cluster.ray_nodes import this_address, this_node
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Copy, Int64Array, Run, Runs
from dataplane_server.core.rows.regions import NODE_SHIFT, WITHIN_NODE
from dataplane_server.service.values import cut_into, digests_of
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb

A = TypeVar("A")

_WARM_BYTES = 64 << 20
_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """coordinator, namespace: where Ray finds the coordinator. memory_bytes: budget of the node; cache_bytes: for bytes
    of other nodes, beside it. folder: None for one in shared memory.
    """

    coordinator: str
    memory_bytes: int
    cache_bytes: int
    namespace: str = "rl-dataplane"
    folder: str | None = None


class NodeActor:
    """An asyncio actor; the caller applies `ray.remote`, with max_restarts=-1. Creating it takes about a second for
    10 GiB, and fails if the arena or the socket cannot be had. Offsets in its methods are global, or of this node.
    """

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._ray_node = this_node()
        self._folder = NodeFolder(Path(options.folder or default_folder(options.coordinator, self._ray_node)))
        cache_at = -(-options.memory_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        cache_bytes = self._folder.cache_bytes(cache_at, options.cache_bytes)
        self._arena = Arena(cache_at + cache_bytes, shared=True, file=self._folder.arena)
        self._arena_id = self._folder.arena_id(self._arena)
        self._cache = Cache(cache_at, cache_bytes)
        self._cache.closed = bool(self._arena.holders())
        self._fetching = Fetching(self._arena, self._cache, self._take)
        self._gateway = Gateway(self._arena, self._cache, self._fetching)
        self._gateway.listen_at(self._folder.socket, None)
        self._lines = ByteLines()
        self._mirror_lines = ByteLines()  # writes of healthy nodes do not wait for reads of one that hangs
        self._mirrors = KeptMirrors(self._folder.path, self._mirror_lines)
        self._port = NodePort(self._arena_of)
        self._bytes_at = self._port.open(this_address())
        self._others: dict[int, BytePlace] = {}
        self._placed = 0  # how many of them
        self._orphans: tuple[bytes, ...] = ()  # of which the coordinator has asked
        self._writing: set[asyncio.Task[Any]] = set()  # for the coordinator
        self._life = asyncio.get_running_loop().create_task(self._live())
        self._life.add_done_callback(_end_of)
        self._warming = asyncio.get_running_loop().create_task(self._warm(cache_at))
        self._linking = asyncio.create_task(self._gateway.link())

    # -- bytes ---------------------------------------------------------------------------------------------------------

    @property
    def _number(self) -> int:
        """Of this node; 0 while no coordinator knows it."""
        return 0 if self._gateway.membership is None else self._gateway.membership.node

    def _arena_of(self, node: int) -> Arena | None:
        return self._arena if node == self._number else self._mirrors.arena_of(node)

    async def prefetch(self, lease: bytes) -> None:
        """Bring bytes of other nodes here, before a client asks for them. Does nothing if that fails."""
        with contextlib.suppress(Refusal):
            self._cache.release(await self._fetching.place(pb.ArenaRuns.FromString(lease), self._number))

    async def copy(self, secret: bytes, copies: Sequence[Copy]) -> None:
        """Copy bytes of any nodes to places in this arena. Sources are global. secret: that the coordinator gave to
        this node last; what another one wants written may be the place of other rows by now. Refusal if it is not, or
        if a node does not answer. ValueError, with nothing written, for a place outside the arena.
        """
        table = np.array(copies, np.int64).reshape(-1, 3)
        nodes = table[:, 0] >> NODE_SHIFT
        table[:, :2] &= WITHIN_NODE
        if not are_inside(self._arena, table[:, 1], table[:, 2]):
            raise ValueError(f"a copy goes to a place outside the arena of {len(self._arena.memory)} bytes")
        for node in np.unique(nodes).tolist():
            of_node = table[nodes == node]
            sources, targets, sizes = of_node.T
            if node == self._number:
                write = partial(self._arena.copy, map(Copy._make, of_node.tolist()))
            else:
                data = np.empty(sizes.sum(), np.uint8).data
                await self._take(node, Runs(sources, sizes), [data])
                write = partial(cut_into, map(self._arena.view, Runs(targets, sizes)), data)
            await self._write_for(secret, in_thread_if_long(write, int(sizes.sum())))

    async def _write_for(self, secret: bytes, work: Coroutine[Any, Any, A]) -> A:
        """Write to memory, unless this node has another coordinator by now."""
        if self._gateway.membership is None or self._gateway.membership.secret != secret:
            work.close()
            raise Refusal(Reason.NODE_LOST, "this node has another coordinator now", node=self._number)
        task = asyncio.get_running_loop().create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return await task

    async def digests(self, offsets: Int64Array, sizes: Int64Array) -> bytes:
        """The XXH3-128 of each run in this arena, as `service.values` has them."""
        hashed = partial(digests_of, self._arena.memory, offsets & WITHIN_NODE, sizes)
        return await in_thread_if_long(hashed, int(sizes.sum()))

    async def _take(self, node: int, runs: Runs, into: Sequence[memoryview]) -> None:
        """As `Take` of fetching."""
        place = self._others.get(node)
        if place is None:
            raise Refusal(Reason.NODE_LOST, f"node {node} is not known here", node=node)
        await self._lines.read(place, node, runs, into)

    # -- mirrors -------------------------------------------------------------------------------------------------------

    async def make_mirror(self, name: str, node: int, size_bytes: int) -> None:
        """A mirror of a node, still without bytes. OSError if there is no space for it."""
        await self._mirrors.make(name, node, size_bytes)

    async def fill_mirror(self, name: str, source: BytePlace, end: int) -> Mirrored:
        """Fetch all bytes of the node up to an offset. source: where it gives them."""
        return await self._mirrors.fill(name, source, end)

    async def follow(
        self, secret: bytes, name: str, source: BytePlace, offsets: Int64Array, sizes: Int64Array
    ) -> Mirrored:
        """Fetch the bytes of a write. secret: as of copy."""
        runs = Runs(offsets & WITHIN_NODE, sizes)
        return await self._write_for(secret, self._mirrors.follow(name, source, runs))

    async def drop_mirror(self, name: str) -> None:
        """Remove it, if it is there."""
        self._mirrors.drop(name)

    async def _warm(self, cache_at: int) -> None:
        """Touch the cache, so that no read waits for the system to clear its pages."""
        for offset in range(cache_at, self._arena.file_bytes, _WARM_BYTES):
            await asyncio.to_thread(touch, self._arena, Run(offset, _WARM_BYTES))

    # -- the coordinator -----------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Beat, and register where the coordinator does not know this arena, until the actor ends."""
        from ray.exceptions import RayError

        await asyncio.to_thread(_sweep, self._options.coordinator)
        coordinator: Any = None
        known = False
        while True:
            try:
                coordinator = coordinator or await asyncio.to_thread(self._find_coordinator)
                if not known:
                    await self._register(coordinator)
                if self._linking.done():  # beats do not wait for a port that does not answer
                    self._linking = asyncio.create_task(self._gateway.link())
                known = await self._beat(coordinator)
                pause_s = BEAT_S if known else _AGAIN_S
            except (RayError, ValueError):  # it has ended for good, is not there yet, or takes no node
                coordinator, known, pause_s = None, False, BEAT_S
            await asyncio.sleep(pause_s)

    def _find_coordinator(self) -> Any:
        import ray

        return ray.get_actor(self._options.coordinator, self._options.namespace)

    async def _register(self, coordinator: Any) -> None:
        self._gateway.leave()  # before former clients are counted
        await self._mirror_lines.close()  # those that a node keeps waiting; the coordinator does not wait for ever
        self._mirror_lines = self._mirrors.lines = ByteLines()
        await asyncio.gather(*self._writing, return_exceptions=True)
        registration = Registration(
            arena_id=self._arena_id,
            ray_node=self._ray_node,
            host=socket.gethostname(),
            folder=str(self._folder.path),
            socket=str(self._folder.socket),
            nonce=self._arena.nonce,
            memory_bytes=self._options.memory_bytes,
            file_bytes=self._arena.file_bytes,
            former=self._former_clients,
            bytes_at=self._bytes_at,
            incarnation=self._folder.incarnation,
            mirrors=self._mirrors.names,
        )
        registered: Registered | None = await coordinator.register.remote(registration)
        if registered is None:
            self._begin_anew()
        self._others, self._placed = dict(registered.others), registered.placed
        self._folder.incarnation = registered.incarnation
        for name in set(registration.mirrors) - set(registered.mirrors):
            self._mirrors.drop(name)
        host, port = registered.calls_host, registered.calls_port
        self._gateway.join(Membership(host, port, registered.secret, registered.number))

    def _begin_anew(self) -> NoReturn:
        """End the process, so that Ray starts it with another arena. Clients keep the mapping of this one."""
        self._folder.remove()
        os._exit(1)

    async def _beat(self, coordinator: Any) -> bool:
        """Whether the coordinator knows this arena."""
        former = self._former_clients
        self._cache.closed = self._cache.closed and former > 0
        beat = Beat(
            arena_id=self._arena_id,
            former=former,
            gone=() if self._arena.holders() else tuple(one for one in self._orphans if not self._gateway.has(one)),
            clients=self._gateway.clients,
            fetched_bytes=self._fetching.fetched_bytes,
            fetches=self._fetching.fetches,
            cache_used_bytes=self._cache.used_bytes,
            cache_hit_bytes=self._fetching.hit_bytes,
            placed=self._placed,
        )
        answer: BeatAnswer = await coordinator.beat.remote(beat)
        self._others.update(answer.others or {})
        self._placed = answer.placed
        self._orphans = answer.orphans
        return answer.known

    @property
    def _former_clients(self) -> int:
        """Of former coordinators, and the former lives of the arena that have some."""
        return self._gateway.former_clients + len(self._arena.holders())

    async def stop(self, keep: bool = False) -> None:
        """Serve no more. Removes the arena's file, unless its values are to be kept for another actor of the node."""
        beside = (self._life, self._linking, self._warming)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await self._gateway.close()
        if not keep:
            self._folder.remove()  # before it waits for nodes that may not answer
        lines = (self._lines.close(), self._mirror_lines.close())
        await asyncio.gather(self._fetching.close(), *lines, self._port.close())
        self._mirrors.close()
        self._arena.close()


def _end_of(life: asyncio.Task[None]) -> None:
    """End the process of an actor that beats no more, by a defect; Ray starts it again."""
    if not life.cancelled():
        life.print_stack()
        os._exit(1)


def _sweep(name: str) -> None:
    import ray

    sweep(name, [node["NodeID"] for node in ray.nodes()])  # type: ignore[no-untyped-call]

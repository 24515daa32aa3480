"""The coordinator: the actor that runs the server of a cluster, and has an actor on each of Ray's nodes.

It serves once the actor of its own node has registered. A node whose actor is silent is lost as soon as Ray calls the
node dead; an actor that only died is restarted by Ray and finds its arena, so it is waited for. A coordinator that is
restarted goes on from its log, and its nodes register again.

With a data directory, a coordinator never begins anew beside nodes that have rows of a former one: it does not serve,
and every call says what is gone (`LostLogError`), unless it was told to accept the loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from dataplane_server.cluster.asking import last_line
from dataplane_server.cluster.coordinator.home_arena import HomeArena
from dataplane_server.cluster.coordinator.members import Member
from dataplane_server.cluster.coordinator.server import ClusterServer, ray_node_of
from dataplane_server.cluster.messages import Beat, BeatAnswer, Registered, Registration
from dataplane_server.cluster.node.actor import NodeActor, NodeOptions
from dataplane_server.cluster.ray_nodes import RayNodes, this_address, this_node
from dataplane_server.config import ServerConfig, host_and_port, is_loopback, with_port
from dataplane_server.core.rows.regions import Region
from dataplane_server.durability.log_reader import segments
from dataplane_server.log import get_log
from dataplane_server.service.lives import next_life

NAMESPACE = "rl-dataplane"
_LOOK_S = 0.5
_NODE_S = 8.0
_MAKE_S = 10.0
"""How long making the first arena, or listening, may fail, as while a former process still has it."""
_SEE_S = 0.05
_END_S = 5.0
RETURN_S = 30.0
"""How long the restarted actor of a living node may take to register."""


class LostLogError(Exception):
    """Nodes have rows that the coordinator's log does not know."""


@dataclass(frozen=True)
class ClusterOptions:
    """name: of the coordinator's actor. cache_bytes: of each node, for bytes of other nodes, beside its budget
    (limits.memory_bytes). folder: of the nodes' arenas and sockets; None for one in shared memory, named after the
    coordinator and the node. mirrored: whether each node gets a mirror.
    """

    name: str
    cache_bytes: int
    folder: str | None = None
    mirrored: bool = False


def by_name(settings: ServerConfig | ClusterOptions) -> dict[str, Any]:
    """Each setting; a server's limits are among its own."""
    found: dict[str, Any] = asdict(settings)
    limits: dict[str, Any] = found.pop("limits", {})
    return found | limits


class Coordinator:
    """An asyncio actor; the caller applies `ray.remote`."""

    def __init__(self, config: ServerConfig, options: ClusterOptions) -> None:
        self._settings = by_name(config) | by_name(options)
        self._config = replace(config, limits=replace(config.limits, cluster=True), share_memory=False)
        self._options = options
        self._log = get_log()
        self._server: ClusterServer | None = None
        self._failure: LostLogError | None = None
        self._unseen: set[str] = set()  # nodes of Ray that may have rows of another log
        self._calls_port = 0
        self._nodes = RayNodes()
        self._actors: dict[str, Any] = {}  # of nodes, by their ids in Ray
        self._silent_since: dict[int, float] = {}  # nodes of the core, without an actor that is heard
        self._listening, self._serving = asyncio.Event(), asyncio.Event()
        self._failing: dict[str, float] = {}  # nodes whose actors cannot be made, since when
        self._no_arena: OSError | None = None  # on this node, so it cannot serve
        self._unserved: tuple[float, Exception] | None = None  # since when it cannot serve, and why
        self._locked: int | None = None
        self._ray_node = this_node()
        self._host = this_address()  # Ray may have restarted it on another machine
        self._hostname = socket.gethostname()
        self._told_unreached = False
        self._life = asyncio.get_running_loop().create_task(self._live())

    # -- calls of clients ----------------------------------------------------------------------------------------------

    async def where(self, ray_node: str) -> dict[str, Any]:
        """Where a client on a node of Ray finds this cluster: "grpc", the address, and "socket" and "nonce" of its
        node, empty if the node has no arena, or no line to here. Waits until the cluster serves, and some seconds for a
        node whose actor is starting. OSError if the server listens where no client of the node's machine reaches it.
        """
        server = await self._once(self._serving)
        found = {"grpc": self._grpc_address(server), "socket": "", "nonce": b""}
        deadline = time.monotonic() + _NODE_S
        while (member := server.serving(ray_node)) is None and time.monotonic() < deadline:
            if ray_node not in self._actors:
                break
            await asyncio.sleep(_LOOK_S / 5)
        for one in server.members:
            if one.registration.ray_node == ray_node and (why := self._why_unreached(server, one.registration)):
                raise OSError(why)
        if member is not None:
            found |= {"socket": member.registration.socket, "nonce": member.registration.nonce}
        return found

    async def addresses(self) -> dict[str, Any]:
        """The addresses at which it serves: "listen", "http", "http_door"; and its "settings", by name. Waits until it
        serves.
        """
        server = (await self._once(self._serving)).server
        http, http_door = server.http_address, server.http_door_address
        return {"listen": server.addresses, "http": http, "http_door": http_door, "settings": self._settings}

    async def _once(self, event: asyncio.Event) -> ClusterServer:
        """The server, once it listens or serves. Raises what ended the coordinator, if that comes first."""
        waiting = asyncio.ensure_future(event.wait())
        await asyncio.wait([waiting, self._life], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._failure is not None:
            raise self._failure
        if self._life.done():
            self._life.result()
        assert self._server is not None  # noqa: S101  # it listens
        return self._server

    def _grpc_address(self, server: ClusterServer) -> str:
        """The first TCP address that other machines reach, as they do; else the first that this one does."""
        addresses = server.server.addresses
        return _reached(addresses, self._host) or min(addresses, key=lambda address: address.startswith("unix:"))

    def _why_unreached(self, server: ClusterServer, registration: Registration) -> str:
        """Why clients of a node cannot call this server; empty if they can. They do before they attach."""
        addresses = server.server.addresses
        if registration.host == self._hostname or _reached(addresses, self._host):
            return ""
        return (
            f"clients on {registration.host} cannot reach {' or '.join(addresses)}; have the cluster listen at an "
            "address that all nodes reach: --listen 0.0.0.0:50051, with --tls-cert, --tls-key and --access, or with "
            "--insecure"
        )

    # -- calls of node actors ------------------------------------------------------------------------------------------

    async def register(self, registration: Registration) -> Registered | None:
        """A node's actor has its arena. None if it must take another one, because clients use this one for rows that
        are not known here, or if it is ended, because it has not the memory that nodes have here. The node of the
        coordinator is the first; then it serves, and others follow.
        """
        server = await self._once(self._listening)
        await self._check_rows(registration, server)
        if registration.memory_bytes != self._config.limits.memory_bytes:
            await self._end_left(registration)
            return None
        if registration.ray_node != self._ray_node:
            await self._once(self._serving)
        elif self._unseen:
            await self._see_others()
        if registration.former and not server.knows(registration):
            return None
        actor = self._actors.get(registration.ray_node) or self._actor_of(registration.ray_node)
        member = server.add_node(registration, actor)
        if registration.ray_node == self._ray_node:
            server.make_home(member)
            if not self._serving.is_set():
                await self._serve(server)
        if not self._told_unreached and (why := self._why_unreached(server, registration)):
            self._told_unreached = True
            self._log.error("node_cannot_call", node=member.number, why=why)
        host, port, members = self._host, self._calls_port, server.members
        kept = server.mirrors.returned(member)
        others, placed = members.placed_since(0), members.placed
        return Registered(member.number, member.secret, host, port, others, server.plane.incarnation, placed, kept)

    async def _serve(self, server: ClusterServer) -> None:
        """Begin to serve. If that fails, as where a port is taken, it is tried again when the node registers again."""
        try:
            await server.server.start()
        except Exception as error:
            self._unserved = self._unserved or (time.monotonic(), error)
            raise
        self._serving.set()

    async def _end_left(self, registration: Registration) -> None:
        """End an actor that a former cluster has left, which had other memory. The next look makes another one."""
        ray_node = registration.ray_node
        actor = self._actors.pop(ray_node, None) or self._actor_of(ray_node)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(actor.stop.remote(), _END_S)
        await asyncio.to_thread(end_actor, actor, _name_of(self._options.name, ray_node))
        self._log.warning("node_replaced", node=ray_node, memory_bytes=registration.memory_bytes)

    async def _check_rows(self, registration: Registration, server: ClusterServer) -> None:
        """Serve no more, if a node has rows of a former coordinator whose log is not here. LostLogError."""
        folder, strict = self._config.data_dir, not self._config.accept_loss
        if folder is not None and strict and registration.incarnation not in ("", server.plane.incarnation):
            self._failure = LostLogError(
                f"{folder} has no log of the rows in {registration.folder} on {registration.host}: put the log back, "
                "or start with --accept-loss, which gives up all rows"
            )
            self._log.error("log_lost", folder=str(folder), node=registration.ray_node)
            self._life.cancel()
            await server.stop()
        if self._failure is not None:
            raise self._failure
        self._unseen.discard(registration.ray_node)

    async def _see_others(self) -> None:
        """Wait for the nodes that may have rows of another log, as long as they may take to come."""
        deadline = time.monotonic() + RETURN_S
        while self._unseen and time.monotonic() < deadline:  # noqa: ASYNC110  # it ends by itself
            await asyncio.sleep(_SEE_S)
        self._unseen.clear()

    async def beat(self, beat: Beat) -> BeatAnswer:
        return (await self._once(self._listening)).hear(beat)

    async def stop(self) -> None:
        """Serve no more, and end the actors of all nodes. Their arenas stay if there is a log that knows the rows."""
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        if self._server is not None and self._failure is None:
            await self._server.stop()
        with contextlib.suppress(Exception):  # Ray itself may be about to end
            await asyncio.to_thread(end_nodes, self._options.name, keep=self._config.data_dir is not None)
        if self._locked is not None:
            os.close(self._locked)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Recover, then look after the nodes until the actor ends."""
        folder = self._config.data_dir
        known = False
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._locked = await _lock(folder / "coordinator.lock")
            known = bool(segments(folder))
        home = HomeArena(known=known)
        life = await next_life(self._config, threading.Event(), home)
        self._server = ClusterServer(self._config, home, life, mirrored=self._options.mirrored)
        self._calls_port = self._server.recover(self._host)
        if life is not None and life.recovery is None and not self._config.accept_loss:
            while not await self._has_looked(self._server):  # noqa: ASYNC110  # Ray has no event for this
                await asyncio.sleep(_LOOK_S)
            self._unseen = set(self._actors)
        self._listening.set()
        while True:
            await self._has_looked(self._server)
            if self._no_arena is not None:
                raise self._no_arena
            if self._unserved is not None and not self._serving.is_set():
                since, error = self._unserved
                if time.monotonic() - since > _MAKE_S:
                    raise error
            await asyncio.sleep(_LOOK_S)

    async def _has_looked(self, server: ClusterServer) -> bool:
        """Look after the nodes. False if that failed, as when Ray is too busy to answer: the next look may not. The
        cluster serves meanwhile; nothing would start this coordinator again.
        """
        try:
            await self._look_after_nodes(server)
        except Exception as error:  # noqa: BLE001  # whatever it is, the cluster would end with it
            self._log.error("look_failed", why=str(error), exc_info=error)
            return False
        return True

    async def _look_after_nodes(self, server: ClusterServer) -> None:
        members = {member.number: member for member in server.members}
        there = [region for region in server.plane.nodes() if not region.ended]
        silent = [region for region in there if not _is_up(members.get(region.number))]
        alive = await asyncio.to_thread(self._nodes.alive, set(map(ray_node_of, silent)))
        up = {member.registration.ray_node for member in members.values() if member.is_up}
        await self._note_failing(set(alive) - up)
        for ray_node in alive:
            if ray_node not in self._actors or ray_node not in up:  # it may be dead for good
                self._actors[ray_node] = await asyncio.to_thread(self._create_actor, ray_node)
        for ray_node in set(self._actors) - set(alive):
            del self._actors[ray_node]
            self._unseen.discard(ray_node)
        if not self._serving.is_set():
            return
        now = time.monotonic()
        self._silent_since = {one.number: self._silent_since.get(one.number, now) for one in silent}
        for region in silent:
            self._judge(server, region, now - self._silent_since[region.number], alive)
        server.mirrors.look_after()

    async def _note_failing(self, silent: Collection[str]) -> None:
        """Tell once of a node whose actor cannot be made, as where there is no memory for its arena."""
        waited_for = {ray_node: actor for ray_node, actor in self._actors.items() if ray_node in silent}
        reasons = await asyncio.gather(*map(_why_not_made, waited_for.values()))
        self._failing = {ray_node: since for ray_node, since in self._failing.items() if ray_node in waited_for}
        for ray_node, why in zip(waited_for, reasons, strict=True):
            if why and ray_node not in self._failing:
                self._failing[ray_node] = time.monotonic()
                self._log.error("node_failed", node=ray_node, why=why)
            is_first = ray_node == self._ray_node and not self._serving.is_set()
            if why and is_first and time.monotonic() - self._failing[ray_node] > _MAKE_S:
                self._no_arena = OSError(f"no arena on the coordinator's node: {why}")

    def _judge(self, server: ClusterServer, region: Region, silent_s: float, alive: list[str]) -> None:
        """Lose a node that does not come back."""
        number = region.number
        if _is_up(server.members.find(number)):
            return  # by now
        if ray_node_of(region) not in alive:
            server.lose_node(number, "the node has ended")
        elif silent_s > RETURN_S:
            server.lose_node(number, f"its actor was not heard for {silent_s:.0f} s")

    def _create_actor(self, ray_node: str) -> Any:
        """The actor of a node, on that node; the one that is there, if this coordinator was restarted."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = NodeOptions(
            self._options.name,
            self._config.limits.memory_bytes,
            self._options.cache_bytes,
            NAMESPACE,
            self._folder(ray_node),
        )
        actor = ray.remote(NodeActor).options(
            name=_name_of(self._options.name, ray_node),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=1000,
            scheduling_strategy=NodeAffinitySchedulingStrategy(ray_node, soft=False),
        )
        return actor.remote(options)

    def _actor_of(self, ray_node: str) -> Any:
        """ValueError if there is none."""
        import ray

        return ray.get_actor(_name_of(self._options.name, ray_node), NAMESPACE)

    def _folder(self, ray_node: str) -> str | None:
        return None if self._options.folder is None else f"{self._options.folder}/{ray_node[:16]}"


def _reached(addresses: Collection[str], host: str) -> str:
    """The first address that other machines reach, as they do; empty if there is none. host: of this machine."""
    for address in addresses:
        if not address.startswith("unix:"):
            listens, port = host_and_port("listen", address)
            if not is_loopback(listens):
                return with_port(f"{host}:0", port) if listens in ("0.0.0.0", "::") else address  # noqa: S104
    return ""


async def _lock(path: Any) -> int:
    """Lock the data directory for this coordinator; waits for a former one that is about to end."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        await asyncio.sleep(_LOOK_S)


async def _why_not_made(actor: Any) -> str:
    """Empty unless making it has failed by now; then another one is made at the next look."""
    from ray.exceptions import ActorUnschedulableError, RayActorError, RayError

    try:
        await asyncio.wait_for(actor.__ray_ready__.remote(), _LOOK_S / 5)
    except (asyncio.TimeoutError, ActorUnschedulableError):  # it is not made yet, or its node has just died
        return ""
    except RayError as error:
        return "" if isinstance(error, RayActorError) and not error.actor_init_failed else last_line(error)
    return ""


def _name_of(cluster: str, ray_node: str) -> str:
    return f"{cluster}-node-{ray_node}"


def end_nodes(cluster: str, *, keep: bool) -> None:
    """End the actors of all nodes of a cluster, also those that no look of its coordinator has found yet. keep: their
    arenas.
    """
    import ray

    if not ray.is_initialized():
        return  # nothing can be reached, and Ray would start a cluster of its own
    found = dict[str, Any]()
    for ray_node in RayNodes().alive(()):
        with contextlib.suppress(ValueError):  # no actor is there
            found[_name_of(cluster, ray_node)] = ray.get_actor(_name_of(cluster, ray_node), NAMESPACE)
    if stopping := [actor.stop.remote(keep=keep) for actor in found.values()]:
        ray.wait(stopping, num_returns=len(stopping), timeout=_END_S)
    with ThreadPoolExecutor() as threads:
        list(threads.map(end_actor, found.values(), found))


def end_actor(actor: Any, name: str) -> None:
    """End it, and wait until its name is free, for a few seconds at most."""
    import ray

    with contextlib.suppress(Exception):  # it may be dead, or its node
        ray.kill(actor, no_restart=True)
    with contextlib.suppress(ValueError):  # there is no such actor any more
        for _ in range(100):
            ray.get_actor(name, NAMESPACE)
            time.sleep(_SEE_S)


def _is_up(member: Member | None) -> bool:
    return member is not None and member.is_up

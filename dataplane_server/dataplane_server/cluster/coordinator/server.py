"""The server of a cluster: the same core, log and fronts as for one machine, with values on nodes.

`recover`, then nodes register, then the server starts once the coordinator's own node has. Snapshots are refused: a
snapshot is of the values of one machine.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from dataplane_server.access.gate import Gate
from dataplane_server.cluster.coordinator.calls import ClusterCalls, on_its_node
from dataplane_server.cluster.coordinator.endpoint import ClusterEndpoint
from dataplane_server.cluster.coordinator.home_arena import HomeArena
from dataplane_server.cluster.coordinator.members import Member, Members
from dataplane_server.cluster.coordinator.mirrors import Mirrors
from dataplane_server.cluster.coordinator.placing import PlacingShell
from dataplane_server.cluster.coordinator.remote_values import ClusterValues
from dataplane_server.cluster.messages import Beat, BeatAnswer, Registration
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.node_calls import AddNode, LoseNode
from dataplane_server.core.rows.regions import NODE_SHIFT, Region
from dataplane_server.durability.life import Life
from dataplane_server.log import get_log
from dataplane_server.observe.metrics import Metrics
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.service.local.local_methods import local_methods
from dataplane_server.service.server import Parts, Server
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import data_plane_pb2 as pb

_GRACE_S = 2.0


class ClusterParts(Parts):
    """The parts of a coordinator's server. home: its arena. mirrored: whether each node gets a mirror."""

    keeps_snapshots = False
    shell = PlacingShell
    members: Members
    mirrors: Mirrors
    cluster_values: ClusterValues

    def __init__(self, home: HomeArena, *, mirrored: bool) -> None:
        self.home = home
        self._mirrored = mirrored

    def arena(self, config: ServerConfig) -> Arena:
        return self.home

    def values(self, shell: Shell, arena: Arena) -> Values:
        self.members = Members(shell.plane)
        self.mirrors = Mirrors(shell, self.members, makes=self._mirrored)
        self.cluster_values = ClusterValues(shell, self.members, self.mirrors, self.home)
        return self.cluster_values

    def servicer(self, shell: Shell, values: Values, metrics: Metrics, gate: Gate) -> DataPlaneServicer:
        return ClusterServicer(shell, values, metrics, gate, self.members)


class ClusterServer:
    """The coordinator: a server, the members of the cluster, and the port for them and their clients.

    home: the server's arena, which a life was begun with, if there is one. mirrored: whether each node gets a mirror.
    """

    def __init__(
        self, config: ServerConfig, home: HomeArena, life: Life | None = None, *, mirrored: bool = False
    ) -> None:
        self._parts = parts = ClusterParts(home, mirrored=mirrored)
        self.server = server = Server(config, life, parts=parts)
        self.plane = server.plane
        self.members, self.mirrors = parts.members, parts.mirrors
        self._keeps = life is not None
        if life is not None:
            home.holders = lambda: self.members.holders
        calls = ClusterCalls(server.shell, parts.cluster_values, server.metrics, self.members)
        methods = local_methods(calls, server.servicer, server.gate)
        methods = {number: on_its_node(method) for number, method in methods.items()}
        self._endpoint = ClusterEndpoint(
            server.shell, server.metrics, self.members, methods, server.gate, server.tracing
        )
        self._log = get_log()

    # -- its life ------------------------------------------------------------------------------------------------------

    def recover(self, host: str) -> int:
        """Take lines of nodes that have registered, and calls of their clients. Returns the port."""
        return self._endpoint.start(host)

    async def stop(self, grace_s: float = _GRACE_S) -> None:
        self._endpoint.draining = True
        await asyncio.gather(self.server.stop(grace_s), self._endpoint.close(keep=self._keeps))
        await asyncio.gather(self._parts.cluster_values.close(), self.mirrors.close())

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def knows(self, registration: Registration) -> bool:
        """Whether the core may have placed values in this arena, perhaps for a former coordinator."""
        return _name_of(registration) in [region.name for region in self.plane.nodes() if not region.ended]

    def add_node(self, registration: Registration, actor: object) -> Member:
        """A node's actor has its arena. Its number is that which the arena had, if the core knows it."""
        self.server.resume()  # the grace of sessions begins with the first node, as late as it can
        for region in self.plane.nodes():
            of_this_node = ray_node_of(region) == registration.ray_node and not region.ended
            if of_this_node and region.name != _name_of(registration):
                self.lose_node(region.number, "its arena is gone")
        member = Member(self.server.shell.apply(AddNode(_name_of(registration))), registration, actor)
        self.members.add(member)
        self._log.info("node_added", node=member.number, host=registration.host, former_clients=registration.former)
        return member

    def make_home(self, member: Member) -> None:
        """Values of calls over gRPC go to this node, which is on this machine. OSError if its arena is not here."""
        registration = member.registration
        path = Path(registration.folder) / "arena"
        self._parts.home.map(path, member.number << NODE_SHIFT, registration.file_bytes)
        cast("PlacingShell", self.server.shell).home = member.number

    def serving(self, ray_node: str) -> Member | None:
        """The node of this name in Ray, if clients can attach there."""
        member = self.members.on(ray_node)
        return member if member is not None and self._endpoint.has_line(member.number) else None

    def hear(self, beat: Beat) -> BeatAnswer:
        """A sign of life of a node."""
        members = self.members
        member = members.of_arena(beat.arena_id)
        if member is None or member.is_doubted:
            return BeatAnswer(False)
        member.hear(beat)
        self._endpoint.release_orphans(beat.gone)
        orphans = self._endpoint.orphans(member.number)
        return BeatAnswer(True, members.placed_since(beat.placed), orphans, members.placed)

    def lose_node(self, number: int, why: str) -> None:
        """A node is gone, and the rows with it of which it had a value, unless it has a mirror."""
        self.members.remove(number)
        self._endpoint.lose(number)
        rows = self.server.shell.apply(LoseNode(number))
        self._log.warning("node_lost", node=number, rows=rows, why=why)
        self.mirrors.place_ended()


def ray_node_of(region: Region) -> str:
    """The node of Ray where an arena is or was; it never moves."""
    return region.name.partition("@")[2]


def _name_of(registration: Registration) -> str:
    return f"{registration.arena_id}@{registration.ray_node}"


class ClusterServicer(DataPlaneServicer):
    """As for one machine, and tells of the nodes."""

    no_snapshots = "a cluster keeps no snapshots: its values are on many machines"

    def __init__(self, shell: Shell, values: Values, metrics: Metrics, gate: Gate, members: Members) -> None:
        super().__init__(shell, values, metrics, gate)
        self._members = members

    def status(self) -> pb.GetServerStatusResponse:
        response = super().status()
        members = {member.number: member for member in self._members}
        for region in self._plane.nodes():
            mirrors = [mirror.on for mirror in region.mirrors]
            node = response.nodes.add(number=region.number, mirrors=mirrors, ended=region.ended)
            node.memory_used_bytes = region.used
            node.written_bytes = self._members.written_bytes[region.number]
            node.local_read_bytes = self._members.local_read_bytes[region.number]
            if (member := members.get(region.number)) is not None:
                _describe(node, member)
        return response


def _describe(node: pb.Node, member: Member) -> None:
    node.name, node.host, node.up = member.registration.ray_node, member.registration.host, member.is_up
    if (beat := member.beat) is not None:
        node.clients, node.fetched_bytes = beat.clients, beat.fetched_bytes
        node.cache_hit_bytes, node.cache_used_bytes = beat.cache_hit_bytes, beat.cache_used_bytes

"""Which nodes have mirrors of which: second copies of all bytes of a node, so that its rows outlive it.

A mirror is made on another node, of another host if there is one, and filled while writes go on. A write on a node that
has a mirror, or whose mirror is being filled, is finished when its bytes are there, too. Once a mirror is filled, the
core knows it (SetMirror), and so does the next coordinator, by the log. A mirror that cannot follow is forgotten before
a write is finished without it; then another one is made. A node that has ended gets a second mirror, filled from the
first.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from typing import Any

from dataplane_server.cluster.asking import answer_while
from dataplane_server.cluster.coordinator.members import Member, Members
from dataplane_server.cluster.messages import Mirrored
from dataplane_server.core.calls.node_calls import SetMirror
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Runs
from dataplane_server.core.rows.regions import MAX_NODES, Mirror, Region
from dataplane_server.log import get_log
from dataplane_server.service.shell import Shell

_PATIENCE_S = 2.0
"""How long a write waits for a mirror that does not answer. A node actor that was killed is often back before that."""
_AGAIN_S = 0.05
_LATER_S = 5.0
"""When a node is asked for a mirror again that it could not make or keep."""


class Mirrors:
    """Of all nodes. makes: whether nodes without a mirror get one."""

    def __init__(self, shell: Shell, members: Members, *, makes: bool) -> None:
        self._shell = shell
        self._plane = shell.plane
        self._members = members
        self._makes = makes
        self._log = get_log()
        self._making: dict[int, Mirror] = {}  # by the node whose mirror it is
        self._filling: dict[int, Mirror] = {}  # of these, those that writes follow
        self._tasks: set[asyncio.Task[None]] = set()  # that make them
        self._there: set[Mirror] = set()  # on nodes, wanted or not
        self._not_before: dict[tuple[int, int], float] = {}  # for a mirror of one node on another

    # -- writes --------------------------------------------------------------------------------------------------------

    def follows(self, node: int) -> bool:
        """Whether a write on a node has to be followed. Refusal NODE_LOST if the node is gone."""
        return bool(self._mirrors_of(node))

    async def follow(self, node: int, runs: Runs) -> None:
        """Wait until the mirrors of a node have the bytes of a write. Refusal NODE_LOST if the node is gone."""
        for mirror in self._mirrors_of(node):
            outcome = await self._followed(node, mirror, runs)
            source = self._members.find(node)
            if outcome == Mirrored.NO_SOURCE and (source is None or not source.is_up):
                raise Refusal(Reason.NODE_LOST, f"node {node} does not give its bytes to its mirror", node=node)
            if outcome != Mirrored.DONE and mirror in self._mirrors_of(node):
                self._forget(node, mirror, outcome.name.lower())

    def _mirrors_of(self, node: int) -> tuple[Mirror, ...]:
        known, filling = self._plane.mirrors_of(node), self._filling.get(node)
        return known if filling is None else (*known, filling)

    async def _followed(self, node: int, mirror: Mirror, runs: Runs) -> Mirrored:
        """Ask again while the mirror may come back. It is not asked again where an earlier call may still be under way
        and could overwrite later bytes: a node that has registered again has ended those.
        """
        until, unclear = time.monotonic() + _PATIENCE_S, b""
        outcome = Mirrored.UNKNOWN
        while time.monotonic() < until:
            source, keeper = self._members.find(node), self._members.find(mirror.on)
            if source is not None and keeper is not None and keeper.secret != unclear:
                place = source.registration.bytes_at
                call = keeper.actor.follow.remote(keeper.secret, mirror.name, place, runs.offsets, runs.sizes)
                try:
                    outcome = await _answer_of(keeper, call)
                except Refusal:
                    unclear, outcome = keeper.secret, Mirrored.UNKNOWN
                else:
                    if outcome != Mirrored.NO_SOURCE:
                        break
            await asyncio.sleep(_AGAIN_S)
        return outcome

    def _forget(self, node: int, mirror: Mirror, why: str) -> None:
        """Finish writes without it from now on."""
        if self._filling.get(node) == mirror:
            del self._filling[node]
        else:
            self._shell.apply(SetMirror(node, mirror.on, ""))
        self._not_before[node, mirror.on] = time.monotonic() + _LATER_S
        self._log.warning("mirror_lost", node=node, on=mirror.on, why=why)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def returned(self, member: Member) -> tuple[str, ...]:
        """A node has registered. Returns the names of the mirrors that it keeps."""
        kept = list[str]()
        for region in self._plane.nodes():
            for mirror in region.mirrors:
                if mirror.on != member.number:
                    continue
                if mirror.name in member.registration.mirrors:
                    kept.append(mirror.name)
                    self._there.add(mirror)
                else:
                    self._forget(region.number, mirror, "its node has lost it")
        self.place_ended()
        return tuple(kept)

    def place_ended(self) -> None:
        """Have the bytes of nodes that have ended be read where a mirror is."""
        for region in self._plane.nodes():
            keeper = next(self._keepers_of(region), None) if region.ended else None
            if keeper is not None:
                self._members.stand_in(region.number, keeper)

    def _keepers_of(self, region: Region) -> Iterator[Member]:
        """Nodes with a mirror, as far as they have registered."""
        found = (self._members.find(mirror.on) for mirror in region.mirrors)
        return (keeper for keeper in found if keeper is not None)

    # -- making them ---------------------------------------------------------------------------------------------------

    def look_after(self) -> None:
        """Remove mirrors that are wanted no more, and begin to make those that are missing."""
        regions = self._plane.nodes()
        wanted = {mirror for region in regions for mirror in region.mirrors} | {*self._making.values()}
        for mirror in self._there - wanted:
            keeper = self._members.find(mirror.on)
            if keeper is not None:
                keeper.actor.drop_mirror.remote(mirror.name)
        self._there &= wanted
        for region in regions if self._makes else ():
            if len(region.mirrors) < 1 + region.ended and region.number not in self._making:
                self._begin(region)

    def _begin(self, region: Region) -> None:
        source = next(self._keepers_of(region), None) if region.ended else self._members.find(region.number)
        keeper = None if source is None or not source.is_up else self._keeper_for(region, source)
        if source is not None and keeper is not None:
            mirror = self._making[region.number] = Mirror(keeper.number, secrets.token_hex(8))
            self._there.add(mirror)
            task = asyncio.get_running_loop().create_task(self._make(region, source, keeper, mirror))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _keeper_for(self, region: Region, source: Member) -> Member | None:
        """A node of another host than the bytes, if there is one, with as few mirrors as any."""
        load, now = Counter(mirror.on for mirror in self._there), time.monotonic()
        taken = {region.number, *(mirror.on for mirror in region.mirrors)}

        def rank(member: Member) -> tuple[bool, int, int]:
            same_host = member.registration.host == source.registration.host
            return same_host, load[member.number], (member.number - region.number) % MAX_NODES

        others = [one for one in self._members if one.is_up and one.number not in taken]
        ready = [one for one in others if self._not_before.get((region.number, one.number), 0.0) <= now]
        return min(ready, key=rank, default=None)

    async def _make(self, region: Region, source: Member, keeper: Member, mirror: Mirror) -> None:
        """Make and fill a mirror, and tell the core, unless a write goes on without it meanwhile."""
        node, why = region.number, ""
        size_bytes = region.used_end if region.ended else region.capacity
        try:
            await _answer_of(keeper, keeper.actor.make_mirror.remote(mirror.name, node, size_bytes))
            self._filling[node] = mirror  # from here on, writes follow
            filling = keeper.actor.fill_mirror.remote(mirror.name, source.registration.bytes_at, region.used_end)
            outcome = await _answer_of(keeper, filling)
            if outcome != Mirrored.DONE:
                why = outcome.name.lower()
            elif self._filling.get(node) is mirror:
                self._shell.apply(SetMirror(node, mirror.on, mirror.name))
                self._log.info("node_mirrored", node=node, on=mirror.on)
        except Refusal as refusal:
            why = str(refusal)
        finally:
            self._filling.pop(node, None)
            del self._making[node]
        if why:
            self._not_before[node, mirror.on] = time.monotonic() + _LATER_S
            self._log.warning("mirror_failed", node=node, on=mirror.on, why=why)

    async def close(self) -> None:
        """Make no more. Mirrors stay where they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _answer_of(keeper: Member, call: Awaitable[Any]) -> Any:
    """As long as the node beats. Refusal NODE_LOST."""
    return await answer_while(lambda: keeper.is_up, call, keeper.number)

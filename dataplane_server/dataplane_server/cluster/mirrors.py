"""Which node has the mirror of which: a second copy of all its bytes, so that its rows outlive it.

A mirror is made on another node, of another host if there is one, and filled while writes go on. A write on a node that
has a mirror, or whose mirror is being filled, is finished when its bytes are there, too. Once a mirror is filled, the
core knows it (SetMirror), and so does the next coordinator, by the log. A mirror that cannot follow is forgotten before
a write is finished without it; then another one is made.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Any

from dataplane_server.cluster.asking import answer_of
from dataplane_server.cluster.members import Member, Members
from dataplane_server.cluster.messages import Mirrored
from dataplane_server.core.calls.node_calls import SetMirror
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Runs
from dataplane_server.core.rows.regions import MAX_NODES, Mirror
from dataplane_server.observe.log import get_log
from dataplane_server.service.shell import Shell

_PATIENCE_S = 2.0
"""How long a write waits for a mirror that does not answer. A node actor that was killed is often back before that."""
_AGAIN_S = 0.05
_LOOK_S = 0.5
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
        return self._mirror_of(node) is not None

    async def follow(self, node: int, runs: Runs) -> None:
        """Wait until the mirror of a node, if it has one, has the bytes of a write. Refusal NODE_LOST if the node is
        gone.
        """
        mirror = self._mirror_of(node)
        if mirror is None:
            return
        outcome = await self._followed(node, mirror, runs)
        source = self._members.find(node)
        if outcome == Mirrored.NO_SOURCE and (source is None or not source.is_up):
            raise Refusal(Reason.NODE_LOST, f"node {node} does not give its bytes to its mirror", node=node)
        if outcome != Mirrored.DONE and self._mirror_of(node) == mirror:
            self._forget(node, mirror, outcome.name.lower())

    def _mirror_of(self, node: int) -> Mirror | None:
        return self._filling.get(node) or self._plane.mirror_of(node)

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
        if self._filling.pop(node, None) is None:
            self._shell.apply(SetMirror(node, 0, ""))
        self._not_before[node, mirror.on] = time.monotonic() + _LATER_S
        self._log.warning("mirror_lost", node=node, on=mirror.on, why=why)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def returned(self, member: Member) -> tuple[str, ...]:
        """A node has registered. Returns the names of the mirrors that it keeps; what lives on there is read there."""
        names, kept = member.registration.mirrors, list[str]()
        for region in self._plane.nodes():
            mirror = region.mirror
            if mirror is None or mirror.on != member.number:
                continue
            if mirror.name not in names:
                self._forget(region.number, mirror, "its node has lost it")
                continue
            kept.append(mirror.name)
            self._there.add(mirror)
            if region.ended:
                self._members.stand_in(region.number, member)
        return tuple(kept)

    def ended(self, number: int) -> None:
        """A node has ended. If it lives on in its mirror, it is read there from now on."""
        mirror = next((one.mirror for one in self._plane.nodes() if one.number == number), None)
        keeper = None if mirror is None else self._members.find(mirror.on)
        if keeper is not None:
            self._members.stand_in(number, keeper)

    # -- making them ---------------------------------------------------------------------------------------------------

    def look_after(self) -> None:
        """Remove mirrors that are wanted no more, and begin to make those that are missing."""
        regions = self._plane.nodes()
        wanted = {region.mirror for region in regions if region.mirror is not None} | {*self._making.values()}
        for mirror in self._there - wanted:
            keeper = self._members.find(mirror.on)
            if keeper is not None:
                keeper.actor.drop_mirror.remote(mirror.name)
        self._there &= wanted
        for region in regions if self._makes else ():
            if region.mirror is None and region.number not in self._making:
                self._begin(region.number)

    def _begin(self, node: int) -> None:
        source = self._members.find(node)
        keeper = None if source is None or not source.is_up else self._keeper_for(source)
        if source is not None and keeper is not None:
            mirror = self._making[node] = Mirror(keeper.number, secrets.token_hex(8))
            self._there.add(mirror)
            task = asyncio.get_running_loop().create_task(self._make(source, keeper, mirror))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _keeper_for(self, source: Member) -> Member | None:
        """A node of another host, if there is one, with as few mirrors as any."""
        load, now = Counter(mirror.on for mirror in self._there), time.monotonic()

        def rank(member: Member) -> tuple[bool, int, int]:
            same_host = member.registration.host == source.registration.host
            return same_host, load[member.number], (member.number - source.number) % MAX_NODES

        others = [one for one in self._members if one.is_up and one.number != source.number]
        ready = [one for one in others if self._not_before.get((source.number, one.number), 0.0) <= now]
        return min(ready, key=rank, default=None)

    async def _make(self, source: Member, keeper: Member, mirror: Mirror) -> None:
        """Make and fill a mirror, and tell the core, unless a write goes on without it meanwhile."""
        node, why = source.number, ""
        try:
            await _answer_of(keeper, keeper.actor.make_mirror.remote(mirror.name, node))
            self._filling[node] = mirror  # from here on, writes follow
            place, end = source.registration.bytes_at, self._plane.used_end_of(node)
            outcome = await _answer_of(keeper, keeper.actor.fill_mirror.remote(mirror.name, place, end))
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
    """What a node's actor answers, however long it takes, if it beats meanwhile. Refusal NODE_LOST."""
    answer: asyncio.Future[Any] = asyncio.ensure_future(answer_of(call, keeper.number, None))
    while not answer.done() and keeper.is_up:
        await asyncio.wait({answer}, timeout=_LOOK_S)
    if not answer.done():
        answer.cancel()
        raise Refusal(Reason.NODE_LOST, f"node {keeper.number} does not answer", node=keeper.number)
    return answer.result()

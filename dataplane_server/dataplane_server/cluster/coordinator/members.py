"""The nodes of a cluster as the coordinator knows them: their actors, their last signs of life, their secrets.

The core knows which arenas there are (AddNode, LoseNode). What is here is of this life of the coordinator only: a node
that the core knows from a former life is away until its actor registers. The bytes of a node that has ended may be read
from another one, its mirror.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dataplane_server.cluster.messages import Beat, BytePlace, Registration
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.plane import DataPlane
from rl_dataplane.v1 import local_pb2 as pb

SILENT_S = 2.0
"""A node whose actor has not been heard for so long is not up."""


@dataclass
class Member:
    """A node whose actor has registered. actor: its handle. secret: that its actor knows. heard_at: monotonic, s.
    is_doubted: whether it has to register again, which ends what it does for this coordinator.
    """

    number: int
    registration: Registration
    actor: Any
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    heard_at: float = field(default_factory=time.monotonic)
    beat: Beat | None = None
    is_doubted: bool = False

    @property
    def is_up(self) -> bool:
        return time.monotonic() - self.heard_at < SILENT_S

    def hear(self, beat: Beat) -> None:
        self.beat, self.heard_at = beat, time.monotonic()

    @property
    def former(self) -> int:
        """Clients of former lives that may still use its arena."""
        return self.registration.former if self.beat is None else self.beat.former


class Members:
    """All registered nodes, by number. written_bytes, local_read_bytes: by the attached clients of each node, and read
    from its own memory, also before its actor was restarted.
    """

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._members: dict[int, Member] = {}
        self._places: dict[int, BytePlace] = {}  # where the bytes of nodes are read
        self._placed: list[int] = []
        self.written_bytes: Counter[int] = Counter()
        self.local_read_bytes: Counter[int] = Counter()

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def add(self, member: Member) -> None:
        """Know a node, in place of what was known of it."""
        self._members[member.number] = member
        self._place(member.number, member)

    def stand_in(self, number: int, keeper: Member) -> None:
        """The bytes of a node that has ended are read from another one."""
        if self._places.get(number) != keeper.registration.bytes_at:
            self._place(number, keeper)

    def _place(self, number: int, member: Member) -> None:
        self._places[number] = member.registration.bytes_at
        self._placed.append(number)

    @property
    def placed(self) -> int:
        """How many places there were so far, also those of nodes that are lost."""
        return len(self._placed)

    def placed_since(self, placed: int) -> dict[int, BytePlace]:
        """Where the bytes of nodes are, as far as this is new after the first `placed`."""
        return {number: self._places[number] for number in self._placed[placed:] if number in self._places}

    def place_of(self, number: int) -> BytePlace:
        """Where the bytes of a node are. Refusal NODE_LOST if nothing that has them has registered."""
        if number not in self._places:
            raise not_there(number)
        return self._places[number]

    def remove(self, number: int) -> None:
        self._members.pop(number, None)
        self._places.pop(number, None)

    def of_arena(self, arena_id: str) -> Member | None:
        return next((member for member in self if member.registration.arena_id == arena_id), None)

    def find(self, number: int) -> Member | None:
        return self._members.get(number)

    def get(self, number: int) -> Member:
        """Refusal NODE_LOST if its actor has not registered."""
        found = self.find(number)
        if found is None:
            raise not_there(number)
        return found

    def on(self, ray_node: str) -> Member | None:
        """The node of this name in Ray, if it is up."""
        return next((one for one in self if one.registration.ray_node == ray_node and one.is_up), None)

    def will_read(self, ray_node: str, source: int, lease_for: Callable[[int], pb.ArenaRuns]) -> None:
        """Have a node fetch from another one what its clients will read, if both are up: a fetch holds space."""
        reader, member = self.on(ray_node), self.find(source)
        if reader is not None and member is not None and member.is_up and reader is not member:
            reader.actor.prefetch.remote(lease_for(reader.number).SerializeToString())

    @property
    def holders(self) -> list[int]:
        """Nodes with clients of a former life, or of which nothing is known yet."""
        known = [region.number for region in self._plane.nodes() if not region.ended]
        return [number for number in known if number not in self._members or self._members[number].former]


def not_there(number: int) -> Refusal:
    return Refusal(Reason.NODE_LOST, f"node {number} is not there", node=number)

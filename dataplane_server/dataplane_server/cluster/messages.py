"""What a node actor and the coordinator tell each other by calls of Ray actors.

A node actor calls `coordinator.register` once it has its arena and its socket, and again whenever a beat's answer says
that the coordinator does not know the arena. It calls `coordinator.beat` every BEAT_S seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

BEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class BytePlace:
    """Where a node gives bytes to other nodes; see `node.port`."""

    host: str
    port: int
    secret: bytes = field(repr=False)


Nodes = Mapping[int, BytePlace]
"""Where nodes give their bytes, by the number of the node."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A node's arena, and how clients of the node find it.

    arena_id: names the arena across restarts of the actor. ray_node: the node's id in Ray. folder: where the arena's
    file, named "arena", and the socket are. memory_bytes: what the core may place, from the arena's begin; the cache is
    behind it. file_bytes: of both. nonce: names the arena to clients. former: clients of former lives of the arena or
    of the coordinator that may still use the arena. bytes_at: where it gives bytes to other nodes. incarnation: of the
    coordinator that it registered with before; empty if there was none. mirrors: that it has of other nodes, by name.
    """

    arena_id: str
    ray_node: str
    host: str
    folder: str
    socket: str
    nonce: bytes
    memory_bytes: int
    file_bytes: int
    former: int
    bytes_at: BytePlace
    incarnation: str
    mirrors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a Registration. secret: proves to the coordinator that a line is of this node's actor.

    calls_host, calls_port: where the coordinator takes lines, and calls of clients. others: with or without this node.
    incarnation: of the coordinator's state, which a restart from its log keeps. placed: as in BeatAnswer. mirrors: the
    registration's that the node keeps; it removes the others.
    """

    number: int
    secret: bytes
    calls_host: str
    calls_port: int
    others: Nodes
    incarnation: str
    placed: int = 0
    mirrors: tuple[str, ...] = ()


class Mirrored(IntEnum):
    """What became of a write in a mirror. UNKNOWN: the node has no such mirror. NO_SOURCE: the node that has the bytes
    does not give them.
    """

    DONE = 0
    UNKNOWN = 1
    NO_SOURCE = 2


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life. former: as in Registration. gone: of the orphans of the last answer, those whose clients use the
    arena no more. clients: attached now. fetched_bytes, fetches, cache_hit_bytes: since the actor began.
    cache_used_bytes: now. placed: as in the last answer.
    """

    arena_id: str
    former: int
    gone: tuple[bytes, ...]
    clients: int
    fetched_bytes: int
    fetches: int
    cache_used_bytes: int
    cache_hit_bytes: int
    placed: int = 0


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    """known: whether the coordinator knows the arena; if not, the actor registers again. others: as in Registered, but
    only those that were added since the last answer, as a thousand nodes hear a thousand. placed: how many were added
    so far. orphans: sessions whose line has ended; what their clients hold stays until a beat says that they are gone.
    """

    known: bool
    others: Nodes | None = None
    orphans: tuple[bytes, ...] = ()
    placed: int = 0

"""Calls about the server itself: its next life, its snapshots, what is on stable storage. See `calls.requests`."""

from __future__ import annotations

from dataclasses import dataclass

from dataplane_server.core.calls.requests import Call


@dataclass(frozen=True, slots=True)
class Recover(Call[None]):
    """The server that applied the calls before has ended, and another one goes on. Calls that waited end, and so do
    writes and reads that were under way: their connections are gone. Each session has its grace from now on, and
    reconnect_s seconds more, in which its client finds the server. held: clients of the former server may still map the
    arena; what they may read or write stays as it is until LetGo. defer_frees: from now on, bytes that a call frees are
    used again only after Settle.
    """

    held: bool
    reconnect_s: float = 0.0
    defer_frees: bool = False


@dataclass(frozen=True, slots=True)
class BeginSnapshot(Call[None]):
    """Pin all rows until EndSnapshot, so that the values of this moment can be copied while other calls go on. Refusal
    LIMIT_REACHED while another snapshot is under way.
    """

    name: str


@dataclass(frozen=True, slots=True)
class EndSnapshot(Call[None]):
    """Unpin what BeginSnapshot pinned."""


@dataclass(frozen=True, slots=True)
class LeaveFor(Call[None]):
    """The last call before a server goes on from the state of a snapshot instead of this one. It changes nothing."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class Restored(Call[None]):
    """This state is that of a snapshot, and clients may know of another one that came after it. Calls that waited and
    writes that were under way end. All sessions end, and what they held is released as not used; reserved groups are
    removed, whoever has reserved them. New claims, sessions and rows get ids that the other state has not given.
    """

    incarnation: str
    first_generation: int


@dataclass(frozen=True, slots=True)
class Settle(Call[None]):
    """The calls that made the first `releases` deferred releases are on stable storage."""

    releases: int


@dataclass(frozen=True, slots=True)
class LetGo(Call[None]):
    """No client of a former server maps the arena any more."""

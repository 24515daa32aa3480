"""Calls about the nodes of a cluster. See `calls.requests`, and `rows.regions` for what a node is here."""

from __future__ import annotations

from dataclasses import dataclass

from dataplane_server.core.calls.requests import Call


@dataclass(frozen=True, slots=True)
class AddNode(Call[int]):
    """A node's arena is there. Answered with the node's number: a new one, or that of an arena of this name which is
    known and was not lost.
    """

    name: str


@dataclass(frozen=True, slots=True)
class LoseNode(Call[int]):
    """A node and its arena are gone; calls that wait for its space end. If it has a mirror, it lives on there. If not,
    the rows of which it had a value are removed, with the other rows of their groups. So are those of nodes that lived
    on in mirrors here. Answered with the number of rows. A node that was lost before loses none.
    """

    number: int


@dataclass(frozen=True, slots=True)
class SetMirror(Call[int]):
    """Node `on` has all bytes of a node, now and after each write that is finished from now on, as the mirror of this
    name; or has them no more, if the name is empty. If the node lived on there alone, its rows are then removed as by
    LoseNode. Answered with their number.
    """

    number: int
    on: int
    name: str

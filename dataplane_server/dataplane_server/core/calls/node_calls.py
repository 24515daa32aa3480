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
    """A node and its arena are gone. Removes the rows of which a value was there, with the other rows of their groups;
    calls that wait for its space end. Answered with the number of rows. A node that was lost before loses none.
    """

    number: int

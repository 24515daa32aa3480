"""What rows have given up while readers pin their slots: it is owed until the last of these readers has ended.

A reader that pins the slot afterwards finds what the row has by then, and does not count: else what a row has given up
would stay as long as readers of it overlap, which may be for ever. So each piece knows how many readers it has, and
each reader what was given up after it had begun, by `Releases.withheld`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from dataplane_server.core.calls.values import Int64Array

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Piece(Generic[T]):
    what: T
    withheld: int
    readers: int


class Owed(Generic[T]):
    """Pieces by slot."""

    def __init__(self) -> None:
        self._of: dict[int, list[_Piece[T]]] = {}

    def __len__(self) -> int:
        """How many slots owe something."""
        return len(self._of)

    def __iter__(self) -> Iterator[T]:
        return (piece.what for pieces in self._of.values() for piece in pieces)

    def add(self, slot: int, what: T, withheld: int, readers: int) -> None:
        """What the row of a slot has given up. readers: who pin the slot. withheld: with this release counted."""
        self._of.setdefault(slot, []).append(_Piece(what, withheld, readers))

    def by(self, slots: Int64Array, began: int) -> list[T]:
        """What a reader of slots keeps. began: what `withheld` was then."""
        owing = [self._of[slot] for slot in slots.tolist() if slot in self._of] if self._of else []
        return [piece.what for pieces in owing for piece in pieces if piece.withheld > began]

    def end(self, slots: Int64Array, began: int) -> list[T]:
        """A reader of slots has ended. Returns what it was the last one to keep."""
        paid: list[T] = []
        for slot in [slot for slot in slots.tolist() if slot in self._of] if self._of else ():
            for piece in self._of[slot]:
                piece.readers -= piece.withheld > began
            paid += [piece.what for piece in self._of[slot] if not piece.readers]
            self._of[slot] = [piece for piece in self._of[slot] if piece.readers]
            if not self._of[slot]:
                del self._of[slot]
        return paid

"""What one client of this host holds in the arena: leases of rows that it reads, reservations that it fills.

Held is held until the client lets go, finishes the write, or is gone; no timer ends it. A client names what it holds by
handles of its own, and may let go of a handle before the call that takes it is carried out.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dataplane_server.core.calls import CommitResult, PutResult
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.service.shell import Shell
from rl_dataplane.v1 import local_pb2 as pb

_REMEMBERED_HANDLES = 4096


Result = PutResult | CommitResult
Applied = Callable[[Result, int], pb.LocalWriteResponse]
"""Counts a finished write of so many bytes, and says what to answer."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Rows pinned under a ticket of the core."""

    ticket: int


@dataclass(frozen=True, slots=True)
class LentRoom:
    """Room reserved under a ticket of the core."""

    ticket: int
    size_bytes: int
    applied: Applied


class LocalSession:
    """One attached client."""

    def __init__(self, shell: Shell) -> None:
        self.token = secrets.token_bytes(16)
        self._shell = shell
        self._held: dict[int, Lease | LentRoom] = {}
        self._let_go: OrderedDict[int, None] = OrderedDict()  # handles that were let go of before they held anything
        self._ended = False

    @property
    def writes(self) -> int:
        """Reservations held."""
        return sum(isinstance(held, LentRoom) for held in self._held.values())

    def hold(self, handle: int, held: Lease | LentRoom) -> None:
        """Keep a ticket under a handle. Refuses a handle that is held, or that the client no longer wants; the ticket
        is then given back.
        """
        unwanted = self._ended or handle in self._let_go
        if not unwanted and handle not in self._held:
            self._held[handle] = held
            return
        self._let_go.pop(handle, None)
        self._give_back(held)
        message = f"handle {handle} {'was let go of' if unwanted else 'is held already'}"
        raise Refusal(Reason.INVALID_REQUEST, message, handle=handle)

    def take_room(self, handle: int) -> LentRoom:
        """A reservation that is about to be finished; it is no longer held."""
        held = self._held.get(handle)
        if not isinstance(held, LentRoom):
            raise Refusal(Reason.INVALID_REQUEST, f"handle {handle} holds no reservation", handle=handle)
        del self._held[handle]
        return held

    def let_go(self, handles: Iterable[int]) -> None:
        """Give back what is held under handles."""
        for handle in handles:
            held = self._held.pop(handle, None)
            if held is not None:
                self._give_back(held)
            else:
                self._let_go[handle] = None
        while len(self._let_go) > _REMEMBERED_HANDLES:
            self._let_go.popitem(last=False)

    def end(self) -> None:
        """The client is gone: give everything back."""
        self._ended = True
        self.let_go(list(self._held))

    def _give_back(self, held: Lease | LentRoom) -> None:
        if isinstance(held, Lease):
            self._shell.settled(lambda: self._shell.plane.end_read(held.ticket))
        else:
            self._shell.settled(lambda: self._shell.plane.abort_write(held.ticket))

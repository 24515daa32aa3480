"""The handles of one client of this host: leases of rows that it reads, reservations that it fills.

A reservation's handle also ends when the client finishes the write; see `handles`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataplane_server.core.calls.answers import CommitResult, PutResult, Reservation
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import AbortWrite, EndRead
from dataplane_server.service.local.handles import Handles
from dataplane_server.service.shell import Shell
from rl_dataplane.v1 import local_pb2 as pb

Result = PutResult | CommitResult
Applied = Callable[[Result, int], pb.LocalWriteResponse]
"""Counts a finished write and its bytes, and returns the response."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Rows pinned under a ticket of the core."""

    ticket: int


@dataclass(frozen=True, slots=True)
class SharedReservation:
    """A reservation of the core that the client writes to directly."""

    reservation: Reservation
    applied: Applied


class LocalSession(Handles[Lease | SharedReservation]):
    """One attached client. writable: whether it may map the arena for writing. owner: the name of the caller whose
    token it has; empty without one.
    """

    def __init__(self, shell: Shell, *, writable: bool = True, token: bytes | None = None, owner: str = "") -> None:
        super().__init__(token)
        self.writable = writable
        self.owner = owner
        self._shell = shell

    @property
    def writes(self) -> int:
        return sum(isinstance(held, SharedReservation) for held in self._held.values())

    def take_reservation(self, handle: int) -> SharedReservation:
        """Remove and return the reservation that the caller finishes."""
        held = self._held.get(handle)
        if not isinstance(held, SharedReservation):
            raise Refusal(Reason.INVALID_REQUEST, f"handle {handle} holds no reservation", handle=handle)
        del self._held[handle]
        return held

    def _end(self, held: Lease | SharedReservation) -> None:
        if isinstance(held, Lease):
            self._shell.give_back(EndRead(held.ticket))
        else:
            self._shell.give_back(AbortWrite(held.reservation.ticket))

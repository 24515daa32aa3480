"""The handles of one client of this host: leases of rows that it reads, reservations that it fills.

A handle stays valid until the client releases it, finishes the write, or disconnects; there are no timeouts. The client
chooses the number of a handle, and may release it before the call that creates it is served.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dataplane_server.core.calls.answers import CommitResult, PutResult, Reservation
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import AbortWrite, EndRead
from dataplane_server.service.shell import Shell
from rl_dataplane.v1 import local_pb2 as pb

_REMEMBERED_HANDLES = 4096

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


class LocalSession:
    """One attached client. writable: whether it may map the arena for writing."""

    def __init__(self, shell: Shell, *, writable: bool = True) -> None:
        self.token = secrets.token_bytes(16)
        self.writable = writable
        self._shell = shell
        self._held: dict[int, Lease | SharedReservation] = {}
        self._released: OrderedDict[int, None] = OrderedDict()  # before the calls that create them
        self._ended = False

    @property
    def writes(self) -> int:
        """How many reservations the client holds."""
        return sum(isinstance(held, SharedReservation) for held in self._held.values())

    def hold(self, handle: int, held: Lease | SharedReservation) -> None:
        """Give a handle to a lease or reservation. If the handle is in use or was released, end the hold and refuse."""
        unwanted = self._ended or handle in self._released
        if not unwanted and handle not in self._held:
            self._held[handle] = held
            return
        self._released.pop(handle, None)
        self._end(held)
        message = f"handle {handle} {'was released' if unwanted else 'is in use already'}"
        raise Refusal(Reason.INVALID_REQUEST, message, handle=handle)

    def reservation(self, handle: int) -> SharedReservation:
        """The reservation that a handle holds."""
        held = self._held.get(handle)
        if not isinstance(held, SharedReservation):
            raise Refusal(Reason.INVALID_REQUEST, f"handle {handle} holds no reservation", handle=handle)
        return held

    def take_reservation(self, handle: int) -> SharedReservation:
        """Remove and return the reservation that the caller finishes."""
        held = self.reservation(handle)
        del self._held[handle]
        return held

    def release(self, handles: Iterable[int]) -> None:
        """End the holds of handles. Unknown handles are remembered, so that a later `hold` of them is refused."""
        for handle in handles:
            held = self._held.pop(handle, None)
            if held is not None:
                self._end(held)
            else:
                self._released[handle] = None
        while len(self._released) > _REMEMBERED_HANDLES:
            self._released.popitem(last=False)

    def end(self) -> None:
        """End every hold, when the client is gone."""
        self._ended = True
        self.release(list(self._held))

    def _end(self, held: Lease | SharedReservation) -> None:
        if isinstance(held, Lease):
            self._shell.apply(EndRead(held.ticket))
        else:
            self._shell.apply(AbortWrite(held.reservation.ticket))

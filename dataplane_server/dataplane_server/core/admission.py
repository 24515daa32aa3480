"""Who may write values now: room in the arena, reserved before the first byte arrives.

A write asks for room for all its rows at once and gets it whole or waits, first come first served, so that a large
put is not starved by small ones. What is reserved is given back (`forfeit`) or handed to the rows (`redeem`), never
both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from dataplane_server.core.calls import Admitted, Reservation
from dataplane_server.core.columns import Column, Int64Array
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.space import ALIGNMENT, align, merged_runs
from dataplane_server.core.state import State


class Admission:
    """Reservations and the queue for them, by ticket."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._reserved: dict[
            int, list[tuple[Int64Array, Int64Array]]
        ] = {}  # ticket -> (offsets, row bytes) of each column
        self._waiting: OrderedDict[int, Sequence[Column]] = OrderedDict()

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._reserved

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def reserved_bytes(self) -> int:
        return sum(int(sizes.sum()) for columns in self._reserved.values() for _, sizes in columns)

    def admit(self, ticket: int, columns: Sequence[Column]) -> Reservation | None:
        """Reserve room for columns that can fit, or queue for it (None: an effect `Admitted` follows)."""
        queues = bool(self._waiting) and _size(columns) > 0
        reservation = None if queues else self._reserve(ticket, columns)
        if reservation is None:
            self._check_may_wait()
            self._waiting[ticket] = columns
        return reservation

    def check_can_fit(self, columns: Sequence[Column]) -> None:
        """Refuse what would not fit an empty arena, where every column begins at an aligned offset."""
        sizes = [column.size_bytes for column in columns if column.size_bytes]
        padded = sum(map(align, sizes[:-1])) + sum(sizes[-1:])
        budget = self._state.limits.memory_bytes
        if padded > budget:
            needed = sum(sizes)
            message = (
                f"the put holds {needed} bytes of values, {padded} with each column aligned to {ALIGNMENT}; "
                f"the whole memory budget is {budget}"
            )
            raise Refusal(Reason.PUT_TOO_LARGE, message, size_bytes=needed, memory_budget_bytes=budget)

    def _check_may_wait(self) -> None:
        limit = self._state.limits.max_waiting_puts
        if len(self._waiting) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"{limit} puts wait for space already", max_waiting_puts=limit)

    def no_space(self, ticket: int) -> Refusal:
        """Why a waiting write did not get room in time."""
        needed = _size(self._waiting.get(ticket, ()))
        space = self._state.space
        message = (
            f"the put holds {needed} bytes of values, {space.free} of the memory budget of {space.capacity} bytes are "
            f"free, {len(self._waiting) - 1} other puts wait; clear consumed rows or raise the budget"
        )
        metadata = {"size_bytes": needed, "free_bytes": space.free, "memory_budget_bytes": space.capacity}
        return Refusal(Reason.NO_SPACE, message, **metadata)

    def redeem(self, ticket: int) -> list[Int64Array]:
        """The offsets of each column's rows; the bytes now belong to the caller."""
        return [offsets for offsets, _ in self._reserved.pop(ticket)]

    def forfeit(self, ticket: int) -> None:
        """Give up a reservation or a place in the queue; unknown tickets are fine."""
        self.leave_queue(ticket)
        for offsets, sizes in self._reserved.pop(ticket, ()):
            self._state.space.release_rows(offsets, sizes)

    def leave_queue(self, ticket: int) -> None:
        """Stop waiting; those behind are not served yet."""
        self._waiting.pop(ticket, None)

    def admit_waiting(self) -> None:
        """Serve the queue from its head while there is room; to be called whenever bytes became free."""
        while self._waiting:
            ticket, columns = next(iter(self._waiting.items()))
            reservation = self._reserve(ticket, columns)
            if reservation is None:
                return
            del self._waiting[ticket]
            self._state.effects.append(Admitted(ticket, reservation))

    def waiting_tickets(self) -> list[int]:
        return list(self._waiting)

    def _reserve(self, ticket: int, columns: Sequence[Column]) -> Reservation | None:
        space = self._state.space
        placed: list[tuple[Int64Array, Int64Array]] = []
        for column in columns:
            sizes = column.row_bytes
            offsets = space.allocate_rows(sizes)
            if offsets is None:
                for done, done_sizes in placed:
                    space.release_rows(done, done_sizes)
                return None
            placed.append((offsets, sizes))
        self._reserved[ticket] = placed
        runs = tuple(run for offsets, sizes in placed for run in merged_runs(offsets, sizes))
        return Reservation(ticket, runs, _size(columns))


def _size(columns: Sequence[Column]) -> int:
    return sum(column.size_bytes for column in columns)

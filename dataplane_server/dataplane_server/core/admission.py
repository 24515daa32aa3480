"""Who may write values now: room in the arena, reserved before the first byte arrives.

A write asks for room for all its rows at once and gets it whole or waits, first come first served, so that a large
put is not starved by small ones. Two lines wait: writes in the name of a claim go ahead of all others, since they are
what lets rows be consumed, and cleared, in the end; behind a line of puts that wait for just that, they would wait for
ever. What is reserved is given back (`forfeit`) or handed to the rows (`redeem`), never both.
"""

from __future__ import annotations

from collections import OrderedDict

from dataplane_server.core.calls import Admitted, Reservation
from dataplane_server.core.columns import Columns, Int64Array
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.space import ALIGNMENT, align
from dataplane_server.core.state import State


class Admission:
    """Reservations and the lines for them, by ticket."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._reserved: dict[int, tuple[Int64Array, Int64Array]] = {}  # ticket -> offsets, bytes: a row a column
        self._urgent: OrderedDict[int, Columns] = OrderedDict()
        self._waiting: OrderedDict[int, Columns] = OrderedDict()
        self._since: dict[int, float] = {}  # of those in either line, monotonic, s

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._reserved

    @property
    def waiting(self) -> int:
        """Writes in either line."""
        return len(self._urgent) + len(self._waiting)

    @property
    def waits_since(self) -> float | None:
        """When the write began to wait that has waited longest; None when none waits."""
        heads = (next(iter(line), None) for line in (self._urgent, self._waiting))
        return min((self._since[ticket] for ticket in heads if ticket is not None), default=None)

    @property
    def reserved_bytes(self) -> int:
        return sum(int(sizes.sum()) for _, sizes in self._reserved.values())

    def admit(self, ticket: int, columns: Columns, now: float, *, urgent: bool = False) -> Reservation | None:
        """Reserve room for columns that can fit, or queue for it (None: an effect `Admitted` follows). urgent: ahead of
        all that are not.
        """
        ahead = len(self._urgent) if urgent else self.waiting
        reservation = None if ahead and columns.size_bytes > 0 else self._reserve(ticket, columns)
        if reservation is None:
            line = self._urgent if urgent else self._waiting
            self._check_may_wait(line)
            line[ticket] = columns
            self._since[ticket] = now
        return reservation

    def check_can_fit(self, columns: Columns) -> None:
        """Refuse what would not fit an empty arena, where every column begins at an aligned offset."""
        sizes = [column.size_bytes for column in columns.each if column.size_bytes]
        padded = sum(map(align, sizes[:-1])) + sum(sizes[-1:])
        budget = self._state.limits.memory_bytes
        if padded > budget:
            needed = sum(sizes)
            message = (
                f"the put holds {needed} bytes of values, {padded} with each column aligned to {ALIGNMENT}; "
                f"the whole memory budget is {budget}"
            )
            raise Refusal(Reason.PUT_TOO_LARGE, message, size_bytes=needed, memory_budget_bytes=budget)

    def _check_may_wait(self, line: OrderedDict[int, Columns]) -> None:
        limit = self._state.limits.max_waiting_puts
        if len(line) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"{limit} puts wait for space already", max_waiting_puts=limit)

    def no_space(self, ticket: int) -> Refusal:
        """Why a waiting write did not get room in time."""
        columns = self._urgent.get(ticket) or self._waiting.get(ticket)
        needed = columns.size_bytes if columns is not None else 0
        space = self._state.space
        message = (
            f"the put holds {needed} bytes of values, {space.free} of the memory budget of {space.capacity} bytes are "
            f"free, {self.waiting - 1} other puts wait; clear consumed rows or raise the budget"
        )
        metadata = {"size_bytes": needed, "free_bytes": space.free, "memory_budget_bytes": space.capacity}
        return Refusal(Reason.NO_SPACE, message, **metadata)

    def redeem(self, ticket: int) -> Int64Array:
        """The offsets of each column's rows, a row of the array for each column; the bytes now belong to the caller."""
        return self._reserved.pop(ticket)[0]

    def forfeit(self, ticket: int) -> None:
        """Give up a reservation or a place in the queue; unknown tickets are fine."""
        self.leave_queue(ticket)
        if ticket in self._reserved:
            offsets, sizes = self._reserved.pop(ticket)
            self._state.space.release_rows(offsets.ravel(), sizes.ravel())

    def leave_queue(self, ticket: int) -> None:
        """Stop waiting; those behind are not served yet."""
        self._urgent.pop(ticket, None)
        self._waiting.pop(ticket, None)
        self._since.pop(ticket, None)

    def admit_waiting(self) -> None:
        """Serve the lines from their head while there is room; to be called whenever bytes became free."""
        while line := self._urgent or self._waiting:
            ticket, columns = next(iter(line.items()))
            reservation = self._reserve(ticket, columns)
            if reservation is None:
                return
            del line[ticket], self._since[ticket]
            self._state.effects.append(Admitted(ticket, reservation))

    def waiting_tickets(self) -> list[int]:
        """Of both lines, in the order in which they would be served."""
        return [*self._urgent, *self._waiting]

    def _reserve(self, ticket: int, columns: Columns) -> Reservation | None:
        size = columns.size_bytes
        if size > self._state.space.free:
            return None
        row_bytes = columns.row_bytes
        placed = self._state.space.allocate_columns(row_bytes)
        if placed is None:
            return None
        offsets, runs = placed
        self._reserved[ticket] = (offsets, row_bytes)
        return Reservation(ticket, runs, size)

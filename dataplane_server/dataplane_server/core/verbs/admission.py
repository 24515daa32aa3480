"""Arena space for writes: each write reserves its space before the first byte arrives, or queues for it.

A write asks for the space of all its rows at once. An append asks for the space of its rows with their new entries;
what they have is copied there in the end. A write gets all of its space or waits. A write that fits passes those of its
queue that do not, as long as each of these is passed by no more bytes than it asks for itself: a small put does not
wait behind a large one, and many of them do not starve it. Otherwise the order is first come, first served.

There are two queues: writes that name a claim are served before all others, and no other passes them. Only they let
rows be consumed and then cleared; behind puts that wait for that very space, they would wait for ever. A reservation
ends once: it is released, or redeemed when its bytes become values of rows.

In a cluster a write asks for space of one node, and waits only for writes that ask for the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from dataplane_server.core.calls.answers import Reservation
from dataplane_server.core.calls.causes import Finding
from dataplane_server.core.calls.columns import Columns
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Copy, Int64Array, Runs
from dataplane_server.core.rows.ranges import column_pieces
from dataplane_server.core.rows.space import ALIGNMENT, align
from dataplane_server.core.state.state import State


@dataclass(slots=True)
class _Asked:
    """What a write asks for, and on which node (0 unless there are nodes). passed: bytes of later writes that have got
    space before it.
    """

    columns: Columns
    node: int
    passed: int = 0

    @property
    def may_be_passed(self) -> int:
        """By how many bytes."""
        return self.columns.size_bytes - self.passed


class Admission:
    """Reservations and the queues for them, by ticket."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._reserved: dict[int, tuple[Int64Array, Int64Array]] = {}  # ticket -> offsets, bytes: a row a column
        self._urgent: OrderedDict[int, _Asked] = OrderedDict()
        self._waiting: OrderedDict[int, _Asked] = OrderedDict()
        self._since: dict[int, float] = {}  # of those in either queue, monotonic, s

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._reserved

    @property
    def waiting(self) -> int:
        """How many writes are in either queue."""
        return len(self._urgent) + len(self._waiting)

    @property
    def waits_since(self) -> float | None:
        """When the longest waiting write began to wait; None if none waits."""
        heads = (next(iter(queue), None) for queue in (self._urgent, self._waiting))
        return min((self._since[ticket] for ticket in heads if ticket is not None), default=None)

    @property
    def reserved_bytes(self) -> int:
        return sum(size_bytes for _, size_bytes in self.reserved())

    def admit(
        self, ticket: int, columns: Columns, now: float, *, node: int = 0, urgent: bool = False
    ) -> Reservation | None:
        """Reserve space for columns that fit into an empty arena. Returns None if the write is queued: the effect
        `Admitted` follows. urgent: ahead of all writes that are not urgent.
        """
        queue = self._urgent if urgent else self._waiting
        ahead = [one for one in queue.values() if one.node == node]
        behind_urgent = not urgent and any(one.node == node for one in self._urgent.values())
        held = behind_urgent or any(columns.size_bytes > one.may_be_passed for one in ahead)
        waits = held and columns.size_bytes > 0
        reservation = None if waits else self._pass(ahead, ticket, columns, node)
        if reservation is None:
            self._check_may_wait(queue)
            queue[ticket] = _Asked(columns, node)
            self._since[ticket] = now
        return reservation

    def check(self, columns: Columns, *, node: int = 0, urgent: bool = False) -> None:
        """Refuse columns that do not fit into an empty arena, each at an aligned offset (those of an append beside what
        their rows have), those of a node that is gone, and a write that would have to wait where no more may.
        """
        sizes = [column.size_bytes for column in columns.each if column.size_bytes]
        padded = sum(map(align, sizes[:-1])) + sum(sizes[-1:])
        budget = self._state.space.capacity_of(node)
        if padded + columns.kept_bytes > budget:
            needed = sum(sizes)
            beside = f", beside the {size_text(columns.kept_bytes)} that its rows have" if columns.kept_bytes else ""
            message = (
                f"the {_what(columns)} holds {size_text(needed)} of values, {size_text(padded)} with each column "
                f"aligned to {ALIGNMENT} bytes{beside}; the whole memory budget is {size_text(budget)}: put fewer rows "
                "at a time or raise the budget"
            )
            raise Refusal(Reason.PUT_TOO_LARGE, message, size_bytes=needed, memory_budget_bytes=budget)
        queue = self._urgent if urgent else self._waiting
        if queue and sizes and not urgent:  # which evicts nothing, and may yet fit
            self._check_may_wait(queue)

    def _check_may_wait(self, queue: OrderedDict[int, _Asked]) -> None:
        limit = self._state.limits.max_waiting_puts
        if len(queue) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"{limit} puts wait for space already", max_waiting_puts=limit)

    def reserved(self) -> Iterator[tuple[int, int]]:
        """The ticket and the bytes of each reservation."""
        return ((ticket, int(sizes.sum())) for ticket, (_, sizes) in self._reserved.items())

    def finding(self, ticket: int) -> Finding:
        """Why a write waits for its space."""
        asked, space = self._urgent.get(ticket) or self._waiting.get(ticket), self._state.space
        columns = None if asked is None else asked.columns
        node, needed = (0, 0) if asked is None else (asked.node, asked.columns.size_bytes)
        free, budget = space.free_of(node), space.capacity_of(node)
        text = (
            f"the {_what(columns)} holds {size_text(needed)} of values, {size_text(free)} of the memory budget "
            f"of {size_text(budget)} {f'of node {node} ' if node else ''}are free, {self.waiting - 1} other puts wait"
        )
        numbers = {"size_bytes": needed, "free_bytes": free, "memory_budget_bytes": budget}
        return Finding("memory_budget", text, numbers)

    def held_back_by(self, ticket: int) -> int:
        """The bytes of the first write of its queue that this one may not pass; 0 if there is none."""
        queue = self._urgent if ticket in self._urgent else self._waiting
        asked = queue[ticket]
        ahead = takewhile(lambda one: one is not asked, queue.values())
        size_bytes = asked.columns.size_bytes
        held = (one for one in ahead if one.node == asked.node and size_bytes > one.may_be_passed)
        return next((one.columns.size_bytes for one in held), 0)

    def no_space(self, ticket: int, held: str) -> Refusal:
        """The refusal of a write that did not get its space in time. held: who has it, and what to do."""
        found = self.finding(ticket)
        metadata = {name: int(number) for name, number in found.numbers.items()}
        return Refusal(Reason.NO_SPACE, f"{found.text}{held}", **metadata)

    def since(self, ticket: int) -> float:
        """When a write began to wait for its space."""
        return self._since[ticket]

    def layout(self, ticket: int) -> tuple[Int64Array, Int64Array] | None:
        """Offsets and bytes of the values of a reservation, an array row for each column. None for unknown tickets."""
        return self._reserved.get(ticket)

    def redeem(self, ticket: int) -> tuple[Int64Array, Int64Array]:
        """End a reservation whose bytes become values of rows. Returns its layout."""
        return self._reserved.pop(ticket)

    def release(self, ticket: int) -> None:
        """End a reservation, or a place in the queue. Unknown tickets are ignored."""
        in_queue = self._urgent.pop(ticket, None) or self._waiting.pop(ticket, None)
        if in_queue is not None:
            self._state.changes.writes_left = True
            del self._since[ticket]
        elif ticket in self._reserved:
            offsets, sizes = self._reserved.pop(ticket)
            self._state.space.release_rows(offsets.ravel(), sizes.ravel())

    def admit_waiting(self) -> list[Reservation]:
        """Serve the queues from their heads while there is space, and those behind that may pass."""
        admitted: list[Reservation] = []
        for queue in (self._urgent, self._waiting) if self._since else ():
            nodes = {asked.node for asked in queue.values()}
            if queue is self._waiting:
                nodes.difference_update(asked.node for asked in self._urgent.values())
            for node in sorted(nodes):
                admitted += self._serve(queue, node)
        return admitted

    def _serve(self, queue: OrderedDict[int, _Asked], node: int) -> list[Reservation]:
        """Serve the writes of a queue that wait for space of a node."""
        admitted, ahead, most = [], list[_Asked](), self._state.limits.memory_bytes
        for ticket, asked in list(queue.items()):
            if asked.node != node:
                continue
            if most <= 0:
                break
            columns = asked.columns
            reservation = None if columns.size_bytes > most else self._pass(ahead, ticket, columns, node)
            if reservation is None:
                ahead.append(asked)
                most = min(most, asked.may_be_passed)
            else:
                del queue[ticket], self._since[ticket]
                admitted.append(reservation)
                most -= columns.size_bytes if ahead else 0
        return admitted

    def waiting_tickets(self) -> list[int]:
        """Tickets in both queues, in the order in which they are served."""
        return [*self._urgent, *self._waiting]

    def _pass(self, ahead: list[_Asked], ticket: int, columns: Columns, node: int) -> Reservation | None:
        """Reserve space for a write, and count its bytes for those that it passes."""
        row_bytes = columns.row_bytes
        placed = self._state.space.allocate_columns(row_bytes, node)
        if placed is None:
            return None
        for one in ahead:
            one.passed += columns.size_bytes
        offsets, runs = placed
        self._reserved[ticket] = (offsets, row_bytes)
        if columns.kept is None:
            return Reservation(ticket, runs, columns.size_bytes)
        kept_bytes = columns.kept.entries * columns.entry_bytes
        tails = Runs(*column_pieces(offsets + kept_bytes, row_bytes - kept_bytes))
        filled = kept_bytes > 0
        copies = zip(*(array[filled].tolist() for array in (columns.kept.offsets, offsets, kept_bytes)), strict=True)
        return Reservation(ticket, tuple(tails), columns.sent_bytes, tuple(map(Copy._make, copies)))


def _what(columns: Columns | None) -> str:
    """What a write is called in refusals."""
    return "put" if columns is None or columns.kept is None else "append, with what its rows have,"


def size_text(size_bytes: int) -> str:
    """A size for people, in the largest unit that it has one of."""
    for unit, in_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= in_bytes:
            return f"{size_bytes / in_bytes:.4g} {unit}"
    return f"{size_bytes} bytes"

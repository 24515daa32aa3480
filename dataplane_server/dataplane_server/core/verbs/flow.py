"""Backpressure: new rows enter a partition while it has room for them.

A put that creates rows and the reservation of a group pass the entrance before anything else happens to them. What does
not pass is refused (`reject`), makes room (`evict`) or waits (`block`), first come first served. Nothing else is ever
held up: writes to rows that exist, write-backs, commits and reserved groups go on, since they let rows be consumed and
cleared. So these, and nothing else, can exceed a budget. A draw waits at the same entrance while it would leave the
band.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from dataplane_server.core.calls.filters import asks, filter_bytes
from dataplane_server.core.calls.refusal import Reason, Refusal, draining, superseded
from dataplane_server.core.calls.requests import DrawSamples, PutSamples, ReserveGroup
from dataplane_server.core.rows.bookkeeping import WRITE_BYTES, id_bytes
from dataplane_server.core.state.entrance import Entry
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.room import full, may_draw, out_of_band, over_budget, paced, why_never, why_never_drawn
from dataplane_server.core.state.state import State
from dataplane_server.core.verbs.eviction import evict

_AGAIN_S = 1.0
"""How often calls are looked at that wait until rows are old enough to be evicted."""

Enters = PutSamples | ReserveGroup | DrawSamples


class Flow:
    """Who waits at which entrance, and which puts come."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._partition_of: dict[int, Partition] = {}  # of all that wait or come, by ticket
        self._ticket_of: dict[str, int] = {}  # by request_id, of groups and draws that wait
        self.waiting = 0
        self._looked = 0.0

    # -- enter ---------------------------------------------------------------------------------------------------------

    def enter_put(self, partition: Partition, ticket: int, entry: Entry) -> bool:
        """Whether the new rows of a put may come now; if not, it waits. Refusal PUT_TOO_LARGE if they never may."""
        if self._passes(partition, entry):
            self._comes(partition, ticket, entry)
            return True
        self._wait(partition, ticket, entry.call)
        partition.entrance.waiting[ticket] = entry
        return False

    def enter_group(self, partition: Partition, call: ReserveGroup, now: float) -> int | None:
        """The ticket of a group that has to wait; None if it may be created. Refusals as of a put."""
        entry = Entry(call, max(1, len(call.sample_ids)), 0, now)
        if self._passes(partition, entry):
            return None
        ticket = self._state.ticket()
        self._wait(partition, ticket, call)
        partition.entrance.waiting[ticket] = entry
        return ticket

    def enter_draw(self, partition: Partition, call: DrawSamples) -> int | None:
        """The ticket of a draw that has to wait; None if it may go on."""
        never, draws = why_never_drawn(partition, call), partition.entrance.draws
        if never is not None:
            raise never
        if not draws and may_draw(partition, call):
            return None
        ticket = self._state.ticket()
        self._wait(partition, ticket, call)
        draws[ticket] = call
        return ticket

    def is_open(self, partition: Partition) -> bool:
        """Whether new rows need not ask: nothing bounds them, and none waits."""
        entrance, policy = partition.entrance, partition.entrance.policy
        bounds = (policy.max_rows, policy.max_bytes, policy.max_versions, policy.band)
        paced = any(task.policy.rows_per_version for task in partition.tasks.values())
        return bounds == (None, None, None, None) and not paced and not entrance.waiting

    def check_still(self, partition: Partition, ticket: int, rows: int, size_bytes: int) -> None:
        """Refuse a put at its end that creates more rows than at its beginning, unless there is room for them: rows
        that it named have been cleared meanwhile.
        """
        if (admitted := partition.entrance.coming.get(ticket)) is not None:
            rows, size_bytes = rows - admitted.rows, 0
        if rows > 0 and (paced(partition, rows) or over_budget(partition, rows, size_bytes)):
            raise full(partition, rows, size_bytes)

    def _passes(self, partition: Partition, entry: Entry) -> bool:
        entrance = partition.entrance
        if self.is_open(partition):
            return True
        never = why_never(partition, entry.rows, entry.size_bytes)
        if never is not None:
            raise never
        if not entrance.waiting and self._has_room(partition, entry, entry.since):
            return True
        if entrance.policy.when_full == "reject":
            raise full(partition, entry.rows, entry.size_bytes)
        return False

    def _has_room(self, partition: Partition, entry: Entry, now: float) -> bool:
        if self._has_come(partition, entry):
            return True
        if paced(partition, entry.rows):
            return False
        if not over_budget(partition, entry.rows, entry.size_bytes):
            return True
        if partition.entrance.policy.when_full != "evict" or self._state.draining:
            return False
        call = entry.call
        if isinstance(call, ReserveGroup) and (
            partition.groups.find(call.group_id) or (partition.rows.find_existing(call.sample_ids) >= 0).any()
        ):
            return True  # the group or a row of it has come meanwhile: it is refused, and no row has to go for it
        return evict(self._state, partition, entry, now)

    @staticmethod
    def _has_come(partition: Partition, entry: Entry) -> bool:
        """Whether all rows of a put exist, since others have put them meanwhile: then none of them is new."""
        if isinstance(entry.call, PutSamples) and entry.counted_at != partition.rows_put_total:
            entry.counted_at = partition.rows_put_total
            if (partition.rows.find_existing(entry.call.sample_ids) >= 0).all():
                entry.rows = 0
        return not entry.rows

    def _comes(self, partition: Partition, ticket: int, entry: Entry) -> None:
        partition.entrance.coming[ticket] = entry
        self._partition_of[ticket] = partition

    def _wait(self, partition: Partition, ticket: int, call: Enters) -> None:
        if self._state.draining:
            raise draining()
        limit = self._state.limits.max_waiting_puts
        if self.waiting >= limit:
            message = f"{limit} calls wait for room in partitions already"
            raise Refusal(Reason.LIMIT_REACHED, message, max_waiting_puts=limit)
        if not isinstance(call, PutSamples):
            self._state.bookkeeping.check(_kept_bytes(call))
            self._state.bookkeeping.add(_kept_bytes(call))
            self._ticket_of[call.request_id] = ticket
        self._partition_of[ticket] = partition
        self._state.changes.partitions[partition] = None
        self.waiting += 1

    # -- go on ---------------------------------------------------------------------------------------------------------

    def ready(self, now: float) -> Iterator[tuple[int, Enters]]:
        """Those that may go on, and wait no more. Each is to be carried out before the next one is asked for."""
        self._looked = now
        while self.waiting and (first := self._first_ready(now)) is not None:
            yield first

    def _first_ready(self, now: float) -> tuple[int, Enters] | None:
        """The longest waiting one of those that are first at an entrance and may go on."""
        heads: list[tuple[int, Partition]] = []
        for partition in self.entrances:
            lines = (partition.entrance.waiting, partition.entrance.draws)
            heads += [(next(iter(line)), partition) for line in lines if line]
        for ticket, partition in sorted(heads, key=itemgetter(0)):
            entry = partition.entrance.waiting.get(ticket)
            if entry is None:
                draw = partition.entrance.draws[ticket]
                if may_draw(partition, draw):
                    self.leave(ticket)
                    return ticket, draw
            elif self._has_room(partition, entry, now):
                self.leave(ticket)
                if isinstance(entry.call, PutSamples) and entry.rows:
                    self._comes(partition, ticket, entry)
                return ticket, entry.call
        return None

    @property
    def next_due(self) -> float | None:
        """When to look again at those that wait until rows are old enough; None if none does."""
        entrances = [one.entrance for one in self.entrances] if self.waiting else []
        ages = any(entrance.waiting and asks(entrance.policy.evict_where, "age_s") for entrance in entrances)
        return self._looked + _AGAIN_S if ages else None

    def hopeless(self) -> list[tuple[int, Refusal]]:
        """Those that wait and can never go on, since a policy has changed or a partition was closed."""
        found = []
        for partition in self.entrances:
            entrance, why = partition.entrance, list[tuple[int, Refusal | None]]()
            if entrance.changed:
                why += [(ticket, why_never(partition, e.rows, e.size_bytes)) for ticket, e in entrance.waiting.items()]
            if entrance.changed or partition.is_ending:
                why += [(ticket, why_never_drawn(partition, draw)) for ticket, draw in entrance.draws.items()]
            found += [(ticket, refusal) for ticket, refusal in why if refusal is not None]
            entrance.changed = False
        return sorted(found, key=itemgetter(0))

    @property
    def entrances(self) -> list[Partition]:
        """The partitions with calls that wait or come."""
        return list(dict.fromkeys(self._partition_of.values()))

    def waits_at(self, ticket: int) -> Partition | None:
        """The partition at whose entrance a call waits; None if it does not wait."""
        partition = self._partition_of.get(ticket)
        return None if partition is None or ticket in partition.entrance.coming else partition

    # -- leave ---------------------------------------------------------------------------------------------------------

    def leave(self, ticket: int) -> None:
        """A call that waits, or a put that comes, has ended. Unknown tickets are ignored."""
        partition = self._partition_of.pop(ticket, None)
        if partition is None:
            return
        self._state.changes.partitions[partition] = None  # it may have been what others waited for
        if partition.entrance.coming.pop(ticket, None) is not None:
            return
        entry = partition.entrance.waiting.pop(ticket, None)
        self._end_wait(partition.entrance.draws.pop(ticket) if entry is None else entry.call)

    def give_up(self, ticket: int) -> Refusal | None:
        """End a wait at its deadline. Returns what to tell the caller; None if it does not wait."""
        partition = self.waits_at(ticket)
        if partition is None:
            return None
        entry = partition.entrance.waiting.get(ticket)
        if entry is None:
            refusal = out_of_band(partition, partition.entrance.draws[ticket])
        else:
            refusal = full(partition, entry.rows, entry.size_bytes)
        self.leave(ticket)
        return refusal

    def supersede(self, request_id: str) -> bool:
        """Fail an earlier attempt of a group or draw that waits. Returns whether there was one."""
        ticket = self._ticket_of.get(request_id)
        if ticket is None:
            return False
        self._fail(ticket, superseded())
        return True

    def sessions(self) -> set[str]:
        """Sessions with groups that wait."""
        return {call.session_id for call in self._groups().values()}

    def fail_session(self, session_id: str) -> None:
        """Fail the groups of a session that has ended."""
        refusal = Refusal(Reason.SESSION_EXPIRED, f"session {session_id!r} ended while the group waited")
        for ticket in [ticket for ticket, call in self._groups().items() if call.session_id == session_id]:
            self._fail(ticket, refusal)

    def _groups(self) -> dict[int, ReserveGroup]:
        """Those that wait, by ticket."""
        entries = {ticket: self._partition_of[ticket].entrance.waiting.get(ticket) for ticket in self.tickets()}
        return {ticket: e.call for ticket, e in entries.items() if e is not None and isinstance(e.call, ReserveGroup)}

    def tickets(self, partition_id: str = "") -> list[int]:
        """Of all that wait, or of those of a partition, in order of arrival."""
        waiting = [(t, one) for t, one in self._partition_of.items() if t not in one.entrance.coming]
        return sorted(ticket for ticket, one in waiting if partition_id in ("", one.partition_id))

    def _fail(self, ticket: int, refusal: Refusal) -> None:
        self._state.fail(ticket, refusal)
        self.leave(ticket)

    def _end_wait(self, call: Enters) -> None:
        self.waiting -= 1
        if not isinstance(call, PutSamples):
            self._state.bookkeeping.add(-_kept_bytes(call))
            del self._ticket_of[call.request_id]

    @property
    def kept_bytes(self) -> int:
        """Memory of groups and draws that wait."""
        calls = [entry.call for p in self._state.partitions.values() for entry in p.entrance.waiting.values()]
        draws = [call for p in self._state.partitions.values() for call in p.entrance.draws.values()]
        return sum(_kept_bytes(call) for call in (*calls, *draws) if not isinstance(call, PutSamples))


def _kept_bytes(call: ReserveGroup | DrawSamples) -> int:
    return WRITE_BYTES + (id_bytes(call.sample_ids) if isinstance(call, ReserveGroup) else filter_bytes(call.where))

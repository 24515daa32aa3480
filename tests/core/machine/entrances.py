"""Entrances of the model: which new rows and draws come at once, wait, or never can, and which rows make room.

Every question is answered by counting all rows anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.core.machine.draws import Draw
from tests.core.machine.partition import PartitionModel
from tests.core.machine.refusals import No, refuse_if
from tests.core.machine.things import Group, Owed, Row, Write
from tests.core.machine.writes import Writes

from dataplane_server.core.calls.flow import FlowPolicy
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import DrawSamples, ReserveGroup


@dataclass(eq=False)
class Entrant:
    """New rows, or a draw, that wait; or a put's rows that come. write: of a put."""

    call: object
    partition: PartitionModel
    rows: int = 0
    size: int = 0
    write: Write | None = None
    number: int = 0

    @property
    def ticket(self) -> int:
        return self.number if self.write is None else self.write.ticket


class Entrances(Writes):
    """entrants: those that wait, in order of arrival. coming: puts that were let in and have not finished."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.entrants: list[Entrant] = []
        self.coming: list[Entrant] = []

    # -- enter ---------------------------------------------------------------------------------------------------------

    def enter_put(self, write: Write, partition: PartitionModel, new_rows: int) -> None:
        """A put comes, or begins to wait, or is refused."""
        alike = [other for other in self.queue() if bool(other.call.claim_id) == bool(write.call.claim_id)]
        is_full = write.size > 0 and not write.call.claim_id and len(alike) >= self.limits.max_waiting_puts
        refuse_if((is_full and (self.was_refused or not self.made_way), Reason.LIMIT_REACHED))
        entrant = Entrant(write.call, partition, new_rows, write.size, write)
        if new_rows == 0 or self._passes(entrant):
            self._come(entrant)
        else:
            write.at_entrance = True
            self.wait_at_entrance(entrant)

    def wait_at_entrance(self, entrant: Entrant) -> None:
        self.entrants.append(entrant)
        entrant.partition.waiting_calls += 1

    def enter_group(self, partition: PartitionModel, call: ReserveGroup) -> Entrant | None:
        """What waits; None if the group may be reserved."""
        entrant = Entrant(call, partition, max(1, len(call.sample_ids)))
        return None if self._passes(entrant) else entrant

    def draw(self, call: DrawSamples) -> Draw | Entrant:
        self.supersede_entrant(call.request_id)
        refuse_if(((call.strategy == "prioritized") != bool(call.priority_tag), Reason.INVALID_REQUEST))
        partition, entrant = self.partition(call.partition_id), Entrant(call, self.partition(call.partition_id))
        if reason := self._why_never(entrant):
            raise No(reason)
        others = (other for other in self.entrants if isinstance(other.call, DrawSamples))
        if any(other.partition is partition for other in others) or not self._may_go(entrant):
            self._check_may_wait()
            return entrant
        return self._drawn(call)

    def supersede_entrant(self, request_id: str) -> None:
        for entrant in [one for one in self.entrants if one.write is None and one.call.request_id == request_id]:  # type: ignore[attr-defined]
            self.fail_entrants([entrant], Reason.SUPERSEDED)
            self.follow_up()

    def follow_flow(self, partition: PartitionModel, flow: FlowPolicy) -> None:
        if flow.band != partition.flow.band:
            partition.begin_band()
        partition.flow = flow

    def _passes(self, entrant: Entrant) -> bool:
        first = not self._line(entrant.partition)
        if first and self._is_open(entrant.partition):
            return True
        if reason := self._why_never(entrant):
            raise No(reason)
        if first and self._may_go(entrant):
            return True
        refuse_if((entrant.partition.flow.when_full == "reject", Reason.PARTITION_FULL))
        self._check_may_wait()
        return False

    def _check_may_wait(self) -> None:
        refuse_if((self.draining, Reason.DRAINING))
        refuse_if((len(self.entrants) >= self.limits.max_waiting_puts, Reason.LIMIT_REACHED))

    def _line(self, partition: PartitionModel) -> list[Entrant]:
        return [one for one in self.entrants if one.partition is partition and not isinstance(one.call, DrawSamples)]

    def _come(self, entrant: Entrant) -> None:
        write = entrant.write
        assert write is not None
        write.at_entrance, write.let_in = False, 1 + max((other.let_in for other in self.writes), default=0)
        if entrant.rows:
            self.coming.append(entrant)

    # -- go on ---------------------------------------------------------------------------------------------------------

    def let_in(self) -> None:
        """Those who wait and never can are refused; of those who can, the longest waiting one goes on, and again."""
        self._refuse_hopeless()
        while (entrant := self._next()) is not None:
            self._unqueue(entrant)
            if entrant.write is not None:
                self._come_late(entrant, entrant.write)
            else:
                self._answer(entrant)
            self.drop_unwanted()
        self._refuse_hopeless()

    def _refuse_hopeless(self) -> None:
        for one in list(self.entrants):
            ends = isinstance(one.call, DrawSamples) and one.partition.is_ending
            reason = self._why_never(one) if ends or one.partition.checks_entrants else None
            if reason is not None:
                self.fail_entrants([one], reason)
        for partition in self.partitions.values():
            partition.checks_entrants = False

    def may_let_in(self) -> bool:
        return self._next() is not None

    def _next(self) -> Entrant | None:
        heads: dict[tuple[int, bool], Entrant] = {}
        for one in self.entrants:
            heads.setdefault((id(one.partition), isinstance(one.call, DrawSamples)), one)
        return next((one for one in sorted(heads.values(), key=lambda head: head.ticket) if self._may_go(one)), None)

    def _come_late(self, entrant: Entrant, write: Write) -> None:
        waiting = [other for other in self.queue() if not other.call.claim_id and other.size > 0]
        queue = [other for other in waiting if other not in self.asks_first or other.ticket not in self.admitted]
        if write.size > 0 and len(queue) >= self.limits.max_waiting_puts and write.ticket not in self.admitted:
            self.fail_writes([write], Reason.LIMIT_REACHED)
        else:
            self.asks_first.add(write)
            self._come(entrant)

    def _answer(self, entrant: Entrant) -> None:
        try:
            answer = self._drawn(entrant.call) if isinstance(entrant.call, DrawSamples) else self.create(entrant.call)  # type: ignore[arg-type]
        except No as no:
            self.effects.failed.append((entrant.ticket, no.reasons))
        else:
            self.effects.answered.append((entrant.ticket, entrant.call, answer))

    def create(self, call: ReserveGroup) -> Group:
        raise NotImplementedError

    def _drawn(self, call: DrawSamples) -> Draw:
        draw = Draw(self, call)
        self.partition(call.partition_id).drawn += min(call.batch_size, len(draw.rows))
        return draw

    # -- leave ---------------------------------------------------------------------------------------------------------

    def fail_entrants(self, entrants: Sequence[Entrant], reason: Reason) -> None:
        for entrant in sorted(entrants, key=lambda one: one.ticket):
            self.effects.failed.append((entrant.ticket, {reason}))
            if entrant.write is None:
                self._unqueue(entrant)
            else:
                self.discard(entrant.write)

    def leave_entrance(self, ticket: int) -> None:
        for entrant in [one for one in self.entrants if one.ticket == ticket]:
            self._unqueue(entrant)

    def discard(self, write: Write) -> None:
        super().discard(write)
        self.forget_entrant(write)

    def forget_entrant(self, write: Write) -> None:
        for entrant in [one for one in self.entrants if one.write is write]:
            self._unqueue(entrant)
        self.coming = [one for one in self.coming if one.write is not write]

    def _unqueue(self, entrant: Entrant) -> None:
        self.entrants.remove(entrant)
        entrant.partition.waiting_calls -= 1

    def check_still(self, write: Write, partition: PartitionModel, new_rows: int) -> None:
        """A put whose rows have been cleared meanwhile needs room for them."""
        admitted = [one.rows for one in self.coming if one.write is write and one.partition is partition]
        more = Entrant(None, partition, new_rows - sum(admitted), 0 if admitted else write.size)
        refuse_if((more.rows > 0 and (self._is_paced(more) or self._is_over(more)), Reason.PARTITION_FULL))

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _is_open(self, partition: PartitionModel) -> bool:
        return partition.flow == FlowPolicy() and not any(one.most_ahead for one in partition.policies.values())

    def _why_never(self, entrant: Entrant) -> Reason | None:
        partition, flow = entrant.partition, entrant.partition.flow
        if isinstance(entrant.call, DrawSamples):
            if flow.band is not None and entrant.call.batch_size > flow.band.most - flow.band.least:
                return Reason.INVALID_REQUEST
            return Reason.TOO_FEW_ROWS if partition.is_ending and not self._may_go(entrant) else None
        bounds = [flow.max_rows, *(policy.most_ahead for policy in partition.policies.values())]
        if flow.band is not None:
            bounds.append(int((flow.band.most - flow.band.least) / flow.band.samples_per_insert))
        too_many = any(entrant.rows > most for most in bounds if most is not None)
        if too_many or (flow.max_bytes is not None and entrant.size > flow.max_bytes):
            return Reason.PUT_TOO_LARGE
        return Reason.PARTITION_CLOSED if partition.closed else None

    def _may_go(self, entrant: Entrant) -> bool:
        """Whether there is room; rows may make it."""
        partition = entrant.partition
        if isinstance(entrant.call, DrawSamples):
            band = partition.flow.band
            return band is None or partition.surplus() - entrant.call.batch_size >= band.least
        if entrant.write is not None:
            named = entrant.call.sample_ids  # type: ignore[attr-defined]
            if len(partition.found(named)) == len(named):  # others have put them meanwhile
                entrant.rows = 0
                return True
        if self._is_paced(entrant):
            return False
        evicts = not self.draining and partition.flow.when_full == "evict"
        again: list[Row] = []
        while self._is_over(entrant):
            if evicts and isinstance(entrant.call, ReserveGroup) and partition.has_some_of(entrant.call):
                return True
            gone = self._victims(entrant) if evicts else []
            again = [row for row in partition.found(entrant.call.sample_ids) if row in gone]  # type: ignore[attr-defined]
            if not gone or (again and self._is_paced(entrant, again)):
                return False
            partition.remove(gone, "evicted")
            self.touched[partition] = None
            if entrant.write is not None:
                self.asks_first.add(entrant.write)
        entrant.rows += len(again)
        return True

    def _coming(self, partition: PartitionModel) -> tuple[int, int]:
        here = [one for one in self.coming if one.partition is partition]
        return sum(one.rows for one in here), sum(one.size for one in here)

    def _is_paced(self, entrant: Entrant, again: Sequence[Row] = ()) -> bool:
        """again: rows that it evicts and creates again."""
        partition, band = entrant.partition, entrant.partition.flow.band
        coming, _ = self._coming(partition)
        new = entrant.rows + len(again)
        for task, policy in partition.policies.items():
            if policy.most_ahead is not None:
                states = ("untaken", "claimed", "delayed")
                before = [row for row in partition.rows if row.standings[task].state in states]
                old = [r for r in before if r.version is not None and partition.is_stale(task, r)]
                lost = [row for row in before if row in old or partition.is_rejected(task, row)]
                lost = [row for row in lost if row.standings[task].state == "untaken"]
                taken = max(0, partition.ledgers[task].ended["committed"] - partition.ledgers[task].taken_before)
                stay = [row for row in before if row not in lost and row not in again]
                if len(stay) + coming + taken + new > policy.most_ahead:
                    return True
        return band is not None and partition.surplus(coming + new) > band.most

    def _is_over(self, entrant: Entrant) -> bool:
        partition, flow = entrant.partition, entrant.partition.flow
        coming_rows, coming_bytes = self._coming(partition)
        rows, size = (
            len(partition.rows) + coming_rows + entrant.rows,
            partition.size_bytes + coming_bytes + entrant.size,
        )
        over = (flow.max_rows is not None and rows > flow.max_rows) or (
            flow.max_bytes is not None and size > flow.max_bytes
        )
        return over or bool(self._too_old(partition))

    def _too_old(self, partition: PartitionModel) -> list[Row]:
        most, current = partition.flow.max_versions, partition.weight_version
        if most is None or current is None:
            return []
        return [row for row in partition.rows if row.version is not None and row.version < current - most + 1]

    # -- eviction ------------------------------------------------------------------------------------------------------

    def _victims(self, entrant: Entrant) -> list[Row]:
        """The first rows and groups in the order of the rule that together make enough room."""
        partition, flow = entrant.partition, entrant.partition.flow
        coming_rows, coming_bytes = self._coming(partition)
        must, named = self._too_old(partition), partition.found(entrant.call.sample_ids)  # type: ignore[attr-defined]
        new_rows = entrant.rows + len(set(must) & set(named))
        rows = len(partition.rows) + coming_rows + new_rows - (flow.max_rows or 1 << 40)
        size = partition.size_bytes + coming_bytes + entrant.size - (flow.max_bytes or 1 << 40)
        units = {id(row.group or row): row.group.rows if row.group else [row] for row in partition.rows}
        stay = set(named) - set(must)
        may = [unit for unit in units.values() if all(self._may_leave(partition, row) for row in unit)]
        may = [unit for unit in may if not stay & set(unit)]
        arrived = {row: number for number, row in enumerate(partition.rows)}

        def order(unit: list[Row]) -> tuple[bool, float, int]:
            versions = [1 << 40 if row.version is None else row.version for row in unit]
            by_version = min(versions) if flow.evict_first == "oldest_version" else 0
            return not set(unit) & set(must), by_version, min(arrived[row] for row in unit)

        gone: list[Row] = []
        freed = 0

        def is_enough() -> bool:
            return len(gone) >= rows and freed >= size and set(must) <= set(gone)

        for unit in sorted(may, key=order):
            if not is_enough():
                gone += unit
                freed = self._bytes(gone)
        return gone if is_enough() else []

    def _may_leave(self, partition: PartitionModel, row: Row) -> bool:
        held = any(one.state in ("claimed", "delayed") for one in row.standings.values())
        return not held and not row.hidden and partition.fits(row, partition.flow.evict_where)

    def _bytes(self, gone: list[Row]) -> int:
        """What is free once rows are gone: values that no other row has."""
        values = {value for row in gone for value in row.values.values()}
        others = {v for v in values for one in v.holders if not isinstance(one, Owed) and one not in gone}
        return sum(len(value.data) for value in values - others)

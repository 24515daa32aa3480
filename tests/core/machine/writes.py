"""Puts and commits of the model: checked when they begin, and again when their last byte has come.

Whether a write that nobody is ahead of gets its space is the core's choice where promises leave one: a range of the
arena that is long enough must be given, too few free bytes must not.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from tests.core.machine.arena import cut, joined
from tests.core.machine.claims import Claims
from tests.core.machine.partition import PartitionModel, entry_bytes, row_entries
from tests.core.machine.refusals import No, refuse_if
from tests.core.machine.things import Claim, Row, Value, Write

from dataplane_server.core.calls.answers import CommitResult, PutResult, Reservation
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import CommitClaim, PutSamples
from dataplane_server.core.calls.values import Run


class Writes(Claims):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._random = random.Random(0)
        self.made_way = False  # an earlier attempt of the call has: whom the plane gave its space is not known yet
        self.was_refused = False  # what the plane said to the call
        self.admitted: set[int] = set()  # writes that waited, and got their space from the plane in this turn
        self.asks_first: set[Write] = set()  # those that waited at an entrance until this turn, or evict rows in it

    # -- begin ---------------------------------------------------------------------------------------------------------

    def begin_put(self, put: PutSamples) -> Write:
        self._supersede_write(put.request_id)
        versions = [tags.get("weight_version") for tags in put.tags or ()]
        refuse_if(
            (any((one is not None and type(one) is not int) or one == -1 for one in versions), Reason.INVALID_REQUEST)
        )
        partition = self._check_put(put)
        write = self._new_write(put, partition, 1 if put.shared else len(put.sample_ids))
        new_rows = 0 if put.reservation_id else [*map(partition.find, put.sample_ids)].count(None)
        self.enter_put(write, partition, new_rows)
        return write

    def enter_put(self, write: Write, partition: PartitionModel, new_rows: int) -> None:
        raise NotImplementedError

    def check_still(self, write: Write, partition: PartitionModel, new_rows: int) -> None:
        raise NotImplementedError

    def forget_entrant(self, write: Write) -> None:
        raise NotImplementedError

    def begin_commit(self, commit: CommitClaim) -> Write | CommitResult:
        self._supersede_write(commit.request_id)
        if not commit.columns:
            return self._committed_before(commit) or self._commit(self.claim_of(commit.claim_id))
        claim, partition = self._check_commit(commit)
        return self._new_write(commit, partition, len(claim.rows))

    def _new_write(self, call: PutSamples | CommitClaim, partition: PartitionModel, n_rows: int) -> Write:
        values: dict[str, list[Value]] = {}
        for spec in call.columns:
            entries = [row_entries(spec, row) for row in range(n_rows)]
            once = isinstance(call, PutSamples) and spec.name in call.once
            data = [self._random_bytes(n * entry_bytes(spec.shape), once=once) for n in entries]
            values[spec.name] = [Value(*one, once=once) for one in zip(data, entries, strict=True)]
        write = Write(call, partition.partition_id, values)
        write.let_in = 1 + max((other.let_in for other in self.writes), default=0)
        if isinstance(call, PutSamples) and call.append:
            self._grow(write, call, partition)
        refuse_if((self.arena.never_fits(write.sizes, write.kept), Reason.PUT_TOO_LARGE))
        return write

    def _random_bytes(self, size: int, *, once: bool) -> bytes:
        """Values that are put once are often equal."""
        return bytes([self._random.randrange(2)]) * size if once else self._random.randbytes(size)

    def _grow(self, write: Write, put: PutSamples, partition: PartitionModel) -> None:
        """The values of an append begin with those that their rows have."""
        rows = [partition.find(sample_id) for sample_id in put.sample_ids]
        write.revisions = revisions(rows)
        for name, values in write.values.items():
            for i, row in enumerate(rows):
                if row is not None and name in row.values:
                    old, new = row.values[name], values[i]
                    values[i] = Value(old.data + new.data, old.entries + new.entries, len(old.data))

    def _supersede_write(self, request_id: str) -> None:
        earlier = [write for write in self.writes if write.call.request_id == request_id]
        self.made_way = bool(earlier)
        self.fail_writes(earlier, Reason.SUPERSEDED)
        self.follow_up()

    # -- space ---------------------------------------------------------------------------------------------------------

    def queue(self) -> list[Write]:
        """Writes that wait for space, in the order in which they are served: those that name a claim first."""
        waiting = [write for write in self.writes if write.runs is None and not write.at_entrance]
        return sorted(waiting, key=lambda write: (not write.call.claim_id, write.let_in))

    def why_not_at_once(self, write: Write) -> set[Reason]:
        """Why a write may not even wait."""
        alike = [other for other in self.queue() if bool(other.call.claim_id) == bool(write.call.claim_id)]
        if self.draining:
            return {Reason.DRAINING}
        return {Reason.LIMIT_REACHED} if len(alike) >= self.limits.max_waiting_puts else set()

    def _ahead_of(self, write: Write) -> list[Write]:
        queue = self.queue()
        if write in queue:
            return queue[: queue.index(write)]
        return [other for other in queue if other.call.claim_id or not write.call.claim_id]

    def must_wait(self, write: Write) -> bool:
        """Whether writes are ahead that it may not pass: those that name a claim, if it does not, and those that others
        would have passed with more bytes than they ask for.
        """
        ahead = self._ahead_of(write)
        urgent = any(other.call.claim_id and not write.call.claim_id for other in ahead)
        return write.size > 0 and (urgent or any(write.size > other.size - other.passed for other in ahead))

    def give_space(self, write: Write, reservation: Reservation) -> None:
        """A write gets its space, and its bytes come. Which space is the core's choice."""
        assert self.arena.may_fit(write.sizes)
        assert reservation.size_bytes == write.size - write.kept
        for other in self._ahead_of(write):
            may_go = not self.must_wait(other) and self.arena.must_fit(other.sizes)
            fair = not write.size or not may_go or write in self.asks_first  # they ask before those that wait for space
            assert fair, "a write passed one that fits"
            other.passed += write.size
        values = [value for column in write.values.values() for value in column]
        copies = iter(reservation.copies)
        tails = cut(reservation.runs, [len(value.data) - value.kept for value in values])
        for value, tail in zip(values, tails, strict=True):
            head = [Run(*next(copies)[1:])] if value.kept else []
            assert sum(run.size_bytes for run in head) == value.kept
            value.pieces = joined(head + tail)
            assert len(value.pieces) <= 1
        assert next(copies, None) is None
        write.runs = joined(piece for value in values for piece in value.pieces)
        write.ticket, write.copies = reservation.ticket, reservation.copies
        self.arena.take(write.runs)
        self.arena.copy_in(reservation.runs, b"".join(value.data[value.kept :] for value in values))

    def discard(self, write: Write) -> None:
        self.writes.remove(write)
        self.arena.free(write.runs or ())

    def fail_writes(self, writes: Iterable[Write], reason: Reason) -> None:
        for write in writes:
            self.effects.failed.append((write.ticket, {reason}))
            self.discard(write)

    # -- finish --------------------------------------------------------------------------------------------------------

    def finish_put(self, write: Write, put: PutSamples) -> PutResult:
        partition = self._check_put(put, write)
        if not put.reservation_id:
            self.check_still(write, partition, [*map(partition.find, put.sample_ids)].count(None))
        self.forget_entrant(write)
        self.touched[partition] = None
        created = 0
        group = self.group_of(put.reservation_id) if put.reservation_id else None
        if put.shared and group is not None:
            partition.share(write, group)
        else:
            self.arena.copy(write.copies)
            created = partition.put(write, put, group)
            self.serve(partition)
        return PutResult(created, write.size - write.kept)

    def finish_commit(self, write: Write, commit: CommitClaim) -> CommitResult:
        claim, partition = self._check_commit(commit)
        partition.write(write, claim.rows)
        partition.update(claim.rows)
        result = self._commit(claim)
        self.serve(partition)
        return result

    def _committed_before(self, commit: CommitClaim) -> CommitResult | None:
        """A shard is committed by all who hold it, and the first one does."""
        for claim in self.claims:
            if claim.claim_id == commit.claim_id and claim.shard is not None and claim.ended == "committed":
                return CommitResult(claim.consumed_rows)
        return None

    def _commit(self, claim: Claim) -> CommitResult:
        rows, partition = claim.left(), self.partitions[claim.partition_id]
        claim.consumed_rows = len(rows)
        partition.consume(claim.task, rows)
        self.end(claim, "committed")
        if partition.definition.clear_when_consumed:
            through = [row for row in rows if all(one.state == "consumed" for one in row.standings.values())]
            partition.remove(through)
        self.serve(partition)
        return CommitResult(len(rows))

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_put(self, put: PutSamples, write: Write | None = None) -> PartitionModel:
        """write: what began with this put."""
        partition = self.partition(put.partition_id)
        named = [partition.find(sample_id) for sample_id in put.sample_ids]
        reasons = self._why_not_generations(named, put)
        if put.existing_only and None in named:
            reasons.add(Reason.SAMPLE_NOT_FOUND)
        if put.append and write is not None and write.revisions != revisions(named):
            reasons.add(Reason.APPEND_CONFLICT)
        if put.add_to_group and (put.claim_id or put.shared or not put.reservation_id or put.generations is not None):
            raise No(Reason.INVALID_REQUEST)
        if put.reservation_id:
            reasons |= self._why_not_in_group(partition, named, put)
        elif any(row is not None and row.hidden for row in named):
            reasons.add(Reason.ROW_RESERVED)
        if put.claim_id:
            reasons |= self._why_not_write_back(named, put)
        if partition.closed and None in named and not put.reservation_id:
            reasons.add(Reason.PARTITION_CLOSED)
        reasons |= self._why_not_on_condition(partition, named, put)
        reasons |= partition.why_not_write(put, named, self.limits)
        if self.rows + named.count(None) > self.limits.max_rows:
            reasons.add(Reason.LIMIT_REACHED)
        if reasons:
            raise No(*reasons)
        return partition

    def _why_not_on_condition(
        self, partition: PartitionModel, named: Sequence[Row | None], put: PutSamples
    ) -> set[Reason]:
        if put.create_only and any(row is not None for row in named):
            return {Reason.SAMPLE_EXISTS}
        if put.only_if and not all(row is not None and partition.fits(row, put.only_if) for row in named):
            return {Reason.CONDITION_FAILED}
        return set()

    def _why_not_generations(self, named: Sequence[Row | None], put: PutSamples) -> set[Reason]:
        if put.generations is None:
            return set()
        replaced = any(row and row.generation != n for row, n in zip(named, put.generations.tolist(), strict=True))
        missing = {Reason.SAMPLE_NOT_FOUND} if None in named else set()
        return missing | ({Reason.ROW_REPLACED} if replaced else set())

    def _why_not_write_back(self, named: Sequence[Row | None], put: PutSamples) -> set[Reason]:
        try:
            own = self.claim_of(put.claim_id).left()
        except No as no:
            return no.reasons
        missing = {Reason.SAMPLE_NOT_FOUND} if None in named else set()
        return missing | (set() if all(row in own for row in named) else {Reason.INVALID_REQUEST})

    def _why_not_in_group(self, partition: PartitionModel, named: Sequence[Row | None], put: PutSamples) -> set[Reason]:
        try:
            group = self.group_of(put.reservation_id)
        except No as no:
            return no.reasons
        if group.partition_id != put.partition_id:
            return {Reason.GROUP_FENCED, Reason.INVALID_REQUEST}
        reasons = {Reason.SAMPLE_NOT_FOUND} if None in named and not put.add_to_group else set()
        fields = {spec.name for spec in put.columns}
        unfit = any(fields & row.values.keys() for row in group.rows) or fields & partition.definition.per_token_fields
        unfit = unfit or fields & group.shared.keys()
        strange = not all(row in group.rows for row in named if row is not None)
        too_many = put.add_to_group and len(group.rows) + named.count(None) > self.limits.max_group_rows
        if strange or too_many or (put.shared and unfit):
            reasons.add(Reason.INVALID_REQUEST)
        return reasons

    def _check_commit(self, commit: CommitClaim) -> tuple[Claim, PartitionModel]:
        claim = self.claim_of(commit.claim_id)
        partition = self.partitions[claim.partition_id]
        lengths = [len(spec.lengths) for spec in commit.columns if spec.lengths is not None]
        refuse_if((any(rows != len(claim.rows) for rows in lengths), Reason.ROW_COUNT_MISMATCH))
        refuse_if((len(claim.left()) < len(claim.rows), Reason.SAMPLE_NOT_FOUND))
        if reasons := partition.why_not_write(commit, claim.rows, self.limits):
            raise No(*reasons)
        return claim, partition


def revisions(rows: Iterable[Row | None]) -> list[object]:
    """What changes when the per-token values of a row do."""
    return [(row, row.revision) if row is not None and row.revision else None for row in rows]

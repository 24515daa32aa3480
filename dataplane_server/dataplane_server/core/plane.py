"""The data plane as a deterministic state machine.

A call goes in, with `now` (monotonic, seconds) where time matters; its answer comes out, and `take_effects` hands
over what else the call caused: waiting calls that were admitted, granted or ended. Nothing here waits, does I/O,
reads a clock or draws a random number, so the same calls always give the same answers.

    answer = plane.finish(ticket, now)
    for effect in plane.take_effects():
        ...  # wake the caller that waits with effect.ticket

Every public method either raises `Refusal` and has changed nothing, or takes effect whole. Values of rows are not here:
the core decides where in the arena they lie, the shell copies them. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dataplane_server.core import invariants
from dataplane_server.core.calls import (
    ClaimRequest,
    ClearResult,
    Commit,
    CommitResult,
    ConsumptionInfo,
    Definition,
    DropResult,
    Effect,
    Grant,
    PartitionInfo,
    Put,
    PutResult,
    ReadPlan,
    ReleaseResult,
    Reservation,
    Waiting,
)
from dataplane_server.core.claims import ClaimDesk
from dataplane_server.core.limits import Limits
from dataplane_server.core.names import check_definition, check_distinct, check_sample_ids
from dataplane_server.core.partition import Partition
from dataplane_server.core.reads import Reads
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.state import State
from dataplane_server.core.writes import Writes

_TIDIED_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Totals:
    """The whole server at a glance."""

    memory_budget_bytes: int
    memory_used_bytes: int
    partitions: int
    rows: int
    open_claims: int
    waiting_claims: int
    waiting_puts: int


class DataPlane:
    """All partitions of one server. `incarnation` makes claim ids of one server life differ from another's."""

    def __init__(self, limits: Limits | None = None, *, incarnation: str = "c") -> None:
        self.limits = limits or Limits()
        self._state = State(self.limits)
        self._claims = ClaimDesk(self._state, incarnation)
        self._writes = Writes(self._state, self._claims)
        self._reads = Reads(self._state)

    def take_effects(self) -> list[Effect]:
        """What calls since the last take have caused for callers that wait, in order."""
        effects, self._state.effects = self._state.effects, []
        return effects

    # -- partitions ----------------------------------------------------------------------------------------------------

    def register_partition(self, request_id: str, definition: Definition, now: float) -> PartitionInfo:
        """Create a partition, or replace its definition, keep its rows and reset its cursors."""
        answer = self._state.answers.recall(request_id, "register", now)
        if isinstance(answer, PartitionInfo):
            return answer
        check_definition(definition, self.limits)
        partition = self._state.partitions.get(definition.partition_id)
        if partition is None:
            partition = self._create(definition)
        else:
            partition.check_redefine(definition)
            self._claims.void(partition)
            partition.redefine(definition)
            self._claims.fail_orphans(definition.partition_id)
            self._claims.serve(partition, now)
        info = partition.info()
        self._state.answers.remember(request_id, "register", info, now)
        return info

    def _create(self, definition: Definition) -> Partition:
        limit = self.limits.max_partitions
        if len(self._state.partitions) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"the server holds {limit} partitions already", max_partitions=limit)
        partition = Partition(definition, self._state.space)
        self._state.partitions[definition.partition_id] = partition
        return partition

    def drop_partition(self, request_id: str, partition_id: str, now: float) -> DropResult:
        """Remove a partition, its rows and claims; one that does not exist is fine."""
        answer = self._state.answers.recall(request_id, "drop", now)
        if isinstance(answer, DropResult):
            return answer
        dropped = 0
        partition = self._state.partitions.get(partition_id)
        if partition is not None:
            dropped = len(partition.rows)
            self._claims.void(partition)
            partition.clear(partition.rows.all_slots())
            del self._state.partitions[partition_id]
            gone = Refusal(
                Reason.PARTITION_NOT_FOUND, f"partition {partition_id!r} was dropped", partition_id=partition_id
            )
            self._claims.fail_waiting_on(partition_id, gone)
            self._writes.fail_waiting_on(partition_id, gone)
        result = DropResult(dropped)
        self._state.answers.remember(request_id, "drop", result, now)
        return result

    def partition_info(self, partition_id: str) -> PartitionInfo:
        return self._state.partition(partition_id).info()

    def partition_infos(self) -> list[PartitionInfo]:
        """All partitions, by id."""
        return [self._state.partitions[name].info() for name in sorted(self._state.partitions)]

    def consumption(self, partition_id: str, tasks: Sequence[str]) -> ConsumptionInfo:
        """How far tasks are; consumed when num_samples rows were put and none is left for any of the tasks."""
        partition = self._state.partition(partition_id)
        if not tasks:
            message = f"a consumption query of partition {partition_id!r} names no task"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition_id)
        check_distinct("task", tasks)
        infos = tuple(partition.task_info(name) for name in tasks)
        announced = partition.rows_put_total >= partition.definition.num_samples
        return ConsumptionInfo(announced and all(i.consumed_rows == len(partition.rows) for i in infos), infos)

    # -- writes --------------------------------------------------------------------------------------------------------

    def begin_put(self, put: Put, now: float) -> Reservation | Waiting | PutResult:
        """Check a put and reserve room for it. A result means that this request was applied before."""
        return self._writes.begin_put(put, now)

    def begin_commit(self, commit: Commit, now: float) -> Reservation | Waiting | CommitResult:
        """Check a commit and reserve room for its columns. A result means that it is done."""
        return self._writes.begin_commit(commit, now)

    def holds_reservation(self, ticket: int) -> bool:
        """Whether bytes may still be copied into the runs of this reservation; ask before every copy."""
        return self._writes.holds_reservation(ticket)

    def lend_reservation(self, ticket: int) -> None:
        """The caller copies into the runs by itself, unasked: they stay its own until finish or abort_write, also when
        a repeated request takes the place of this one.
        """
        self._writes.lend(ticket)

    def finish(self, ticket: int, now: float) -> PutResult | CommitResult:
        """Apply a write all of whose bytes are in place. Its reservation ends either way."""
        return self._writes.finish(ticket, now)

    def abort_write(self, ticket: int) -> None:
        """Forget a write that will not finish; unknown tickets are fine."""
        self._writes.abort(ticket)

    def give_up_write(self, ticket: int) -> Refusal:
        """End the wait for room at the caller's deadline; what to tell the caller."""
        return self._writes.give_up(ticket)

    def clear_samples(
        self, request_id: str, partition_id: str, sample_ids: Sequence[str] | None, now: float
    ) -> ClearResult:
        """Remove rows (None: all of the partition); ids that do not exist are fine."""
        answer = self._state.answers.recall(request_id, "clear", now)
        if isinstance(answer, ClearResult):
            return answer
        partition = self._state.partition(partition_id)
        if sample_ids is None:
            slots = partition.rows.all_slots()
        else:
            check_sample_ids(sample_ids, self.limits)
            found = partition.rows.find_existing(sample_ids)
            slots = found[found >= 0]
        result = ClearResult(len(slots), partition.clear(slots))
        self._state.answers.remember(request_id, "clear", result, now)
        self._writes.admission.admit_waiting()
        return result

    # -- reads ---------------------------------------------------------------------------------------------------------

    def begin_read(self, partition_id: str, sample_ids: Sequence[str], fields: Sequence[str]) -> ReadPlan:
        """Pin rows and say where their values lie until end_read."""
        return self._reads.begin(partition_id, sample_ids, fields)

    def end_read(self, ticket: int) -> None:
        self._reads.end(ticket)
        self._writes.admission.admit_waiting()

    # -- claims --------------------------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest, now: float) -> Grant | Waiting:
        """Take ready rows for a task, or wait for them."""
        return self._claims.claim(request, now)

    def give_up_claim(self, ticket: int, now: float) -> Refusal:
        """End the wait of a claim at the caller's deadline; what to tell the caller."""
        return self._claims.give_up(ticket, now)

    def abandon_claim(self, ticket: int, now: float) -> None:
        """Forget a waiting claim whose caller is gone; unknown tickets are fine."""
        self._claims.abandon(ticket, now)

    def claimed_partition(self, claim_id: str) -> str | None:
        """The partition of an open claim; None when the claim is not open."""
        return self._claims.partition_id(claim_id)

    def release_claim(self, request_id: str, claim_id: str, now: float) -> ReleaseResult:
        """Give the rows of a claim back, first in line."""
        return self._claims.release(request_id, claim_id, now)

    # -- the whole -----------------------------------------------------------------------------------------------------

    @property
    def untidy(self) -> bool:
        """Whether `tidy` has something to do."""
        return self._state.space.piled > 0

    def tidy(self) -> None:
        """A third of a millisecond of work that calls have put off; to be done between calls."""
        self._state.space.settle(_TIDIED_AT_ONCE)

    def drain(self, now: float) -> None:
        """From now on nothing may wait: waiting calls end, later ones that would wait are refused."""
        self._state.draining = True
        self._claims.drain()
        self._writes.drain()

    def totals(self) -> Totals:
        return Totals(
            memory_budget_bytes=self.limits.memory_bytes,
            memory_used_bytes=self._state.space.used,
            partitions=len(self._state.partitions),
            rows=self._state.total_rows,
            open_claims=self._claims.open,
            waiting_claims=self._claims.waiting,
            waiting_puts=self._writes.admission.waiting,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError that names the first law that does not hold. For tests; cost is O(rows)."""
        invariants.check(self._state, self._claims, self._writes, self._reads)

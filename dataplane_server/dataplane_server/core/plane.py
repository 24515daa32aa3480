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

from collections.abc import Mapping, Sequence

import numpy as np

from dataplane_server.core import invariants
from dataplane_server.core.calls import (
    ClaimRequest,
    ClearResult,
    Commit,
    CommitResult,
    ConsumptionInfo,
    DeadLetter,
    Definition,
    DropResult,
    Effect,
    Grant,
    GroupAborted,
    GroupFinished,
    PartitionInfo,
    Put,
    PutResult,
    ReadPlan,
    ReleaseResult,
    Reservation,
    Reserve,
    Reserved,
    ResetResult,
    SampleStory,
    SessionInfo,
    ShardRequest,
    Totals,
    Waiting,
)
from dataplane_server.core.claim_line import ClaimLine
from dataplane_server.core.claim_table import ClaimTable
from dataplane_server.core.claims import ClaimDesk
from dataplane_server.core.columns import Int64Array
from dataplane_server.core.figures import Column, partition_columns, task_columns
from dataplane_server.core.groups import Groups
from dataplane_server.core.limits import Limits
from dataplane_server.core.names import check_definition, check_distinct, check_sample_ids
from dataplane_server.core.partition import Partition
from dataplane_server.core.reads import Reads
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.resets import reset_task
from dataplane_server.core.session_desk import SessionDesk
from dataplane_server.core.state import State
from dataplane_server.core.steps import StepDesk
from dataplane_server.core.stories import story
from dataplane_server.core.writes import Writes

_TIDIED_AT_ONCE = 256


class DataPlane:
    """All partitions of one server. `incarnation` makes ids of claims, sessions and reservations of one server life
    differ from another's; so does `first_generation`, which must be beyond every generation of an earlier life.
    """

    def __init__(self, limits: Limits | None = None, *, incarnation: str = "c", first_generation: int = 1) -> None:
        self.limits = limits or Limits()
        self._state = State(self.limits, incarnation, first_generation)
        self._line = ClaimLine(self._state)
        self._open_claims = ClaimTable(self._state)
        self._claims = ClaimDesk(self._state, self._line, self._open_claims)
        self._steps = StepDesk(self._state, self._line, self._open_claims, self._claims)
        self._writes = Writes(self._state, self._line, self._claims)
        self._groups = Groups(self._state, self._writes.admission)
        self._reads = Reads(self._state)
        self._sessions = SessionDesk(self._state, self._line, self._claims, self._steps, self._groups)

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
            self._claims.void(partition, now)
            self._steps.forget(partition)
            partition.redefine(definition)
            self._state.journal.note_all("reset", definition.partition_id, now, reason="registered anew")
            self._line.fail_orphans(definition.partition_id)
            self._line.serve(partition, now)
        info = partition.info(now)
        self._state.answers.remember(request_id, "register", info, now)
        return info

    def _create(self, definition: Definition) -> Partition:
        limit = self.limits.max_partitions
        if len(self._state.partitions) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"the server holds {limit} partitions already", max_partitions=limit)
        partition = Partition(definition, self._state.space, self._state.births)
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
            self._claims.void(partition, now)
            self._steps.forget(partition)
            partition.clear(partition.rows.all_slots())
            self._state.journal.note_all("cleared", partition_id, now, reason="the partition was dropped")
            del self._state.partitions[partition_id]
            gone = Refusal(
                Reason.PARTITION_NOT_FOUND, f"partition {partition_id!r} was dropped", partition_id=partition_id
            )
            self._line.fail_waiting_on(partition_id, gone)
            self._writes.fail_waiting_on(partition_id, gone)
        result = DropResult(dropped)
        self._state.answers.remember(request_id, "drop", result, now)
        return result

    def partition_info(self, partition_id: str, now: float = 0.0) -> PartitionInfo:
        """now: until when the time in states is counted."""
        return self._state.partition(partition_id).info(now)

    def partition_infos(self, now: float = 0.0) -> list[PartitionInfo]:
        """All partitions, by id."""
        return [self._state.partitions[name].info(now) for name in sorted(self._state.partitions)]

    @property
    def registered(self) -> Mapping[str, Partition]:
        """All partitions, by id, for reading."""
        return self._state.partitions

    def columns(self, now: float) -> tuple[list[Column], list[Column]]:
        """The figures of all partitions and of all their tasks, in the order of `registered`; see `figures`."""
        partitions, births = self._state.partitions.values(), self._state.births
        return partition_columns(partitions, births, now), task_columns(partitions, births, now)

    def consumption(self, partition_id: str, tasks: Sequence[str], now: float = 0.0) -> ConsumptionInfo:
        """How far tasks are; consumed when num_samples rows were put and none is left for any of the tasks."""
        partition = self._state.partition(partition_id)
        if not tasks:
            message = f"a consumption query of partition {partition_id!r} names no task"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition_id)
        check_distinct("task", tasks)
        infos = tuple(partition.task_info(name, now) for name in tasks)
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
        self,
        request_id: str,
        partition_id: str,
        sample_ids: Sequence[str] | None,
        now: float,
        generations: Int64Array | None = None,
    ) -> ClearResult:
        """Remove rows (None: all of the partition); ids that do not exist, or are other rows than their generations
        name, are fine.
        """
        answer = self._state.answers.recall(request_id, "clear", now)
        if isinstance(answer, ClearResult):
            return answer
        partition = self._state.partition(partition_id)
        journal = self._state.journal
        if sample_ids is None:
            slots = partition.rows.all_slots()
            journal.note_all("cleared", partition_id, now)
        else:
            check_sample_ids(sample_ids, self.limits)
            slots = partition.find_same(sample_ids, generations)
            journal.note("cleared", partition_id, partition.rows.ids(slots), now)
        result = ClearResult(len(slots), partition.clear(slots))
        partition.count_clear()
        self._state.answers.remember(request_id, "clear", result, now)
        self._writes.admission.admit_waiting()
        self._line.serve(partition, now)  # a group that lost a row may be complete now
        return result

    # -- reads ---------------------------------------------------------------------------------------------------------

    def begin_read(
        self,
        partition_id: str,
        sample_ids: Sequence[str],
        fields: Sequence[str],
        generations: Int64Array | None = None,
    ) -> ReadPlan:
        """Pin rows and say where their values lie until end_read."""
        return self._reads.begin(partition_id, sample_ids, fields, generations)

    def end_read(self, ticket: int) -> None:
        self._reads.end(ticket)
        self._writes.admission.admit_waiting()

    # -- claims --------------------------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest, now: float) -> Grant | Waiting:
        """Take ready rows for a task, or wait for them."""
        return self._claims.claim(request, now)

    def claim_shard(self, request: ShardRequest, now: float) -> Grant | Waiting:
        """Take the rows of one rank for a step, or wait for them."""
        return self._steps.claim(request, now)

    def give_up_claim(self, ticket: int, now: float) -> Refusal:
        """End the wait of a claim at the caller's deadline; what to tell the caller."""
        refusal = self._claims.give_up(ticket, now) or self._steps.give_up(ticket, now)
        return refusal or Refusal(Reason.CLAIM_TIMEOUT, "the claim was not waiting any more")

    def abandon_claim(self, ticket: int, now: float) -> None:
        """Forget a waiting claim whose caller is gone; unknown tickets are fine."""
        self._claims.abandon(ticket, now)
        self._steps.abandon(ticket, now)

    def abandon_request(self, request_id: str, claim_request_id: str, now: float) -> ReleaseResult:
        """Whether it waits, was granted or is yet to come: nobody will take the answer to this claim."""
        answers = self._state.answers
        if answers.recall(request_id, "release", now) is None:
            answers.recall(claim_request_id, "claim", now)  # refuses an id that names no claim
            self._steps.abandon_request(claim_request_id, now)
        return self._claims.abandon_request(request_id, claim_request_id, now)

    def release_claim(
        self, request_id: str, claim_id: str, now: float, *, delay_s: float = 0.0, reason: str = ""
    ) -> ReleaseResult:
        """Give the rows of a claim back, first in line, at once or after a delay; with a reason the delivery counts."""
        return self._claims.release(request_id, claim_id, now, delay_s, reason)

    def adopt_claim(self, request_id: str, claim_id: str, session_id: str, now: float) -> None:
        """Move a claim to another session."""
        self._claims.adopt(request_id, claim_id, session_id, now)

    def reset_task(
        self, request_id: str, partition_id: str, task: str, sample_ids: Sequence[str] | None, now: float
    ) -> ResetResult:
        """Give rows (None: all) back to a task as if it had never taken them."""
        answer = self._state.answers.recall(request_id, "reset", now)
        if isinstance(answer, ResetResult):
            return answer
        partition = self._state.partition(partition_id)
        partition.task(task)
        if sample_ids is not None:
            check_sample_ids(sample_ids, self.limits)
        result = reset_task(self._state, self._claims, self._steps, partition, task, sample_ids, now)
        self._line.serve(partition, now)
        self._state.answers.remember(request_id, "reset", result, now)
        return result

    def dead_letters(self, partition_id: str, task: str) -> list[DeadLetter]:
        """Rows that a task has given up, in order of arrival; no more than a call may name."""
        partition = self._state.partition(partition_id)
        deliveries = partition.task(task).deliveries
        slots = partition.task(task).dead_slots()
        slots = slots[np.argsort(partition.rows.generations(slots))][: self.limits.max_rows_per_call]
        counts = deliveries.counts(slots).tolist()
        reasons = map(deliveries.reason, slots.tolist())
        return list(map(DeadLetter, partition.rows.ids(slots), counts, reasons))

    # -- groups --------------------------------------------------------------------------------------------------------

    def reserve_group(self, request: Reserve, now: float) -> Reserved:
        """Create the rows of a prompt, hidden until they are finished."""
        return self._groups.reserve(request, now)

    def finish_group(
        self, request_id: str, reservation_id: str, weight_version: int | None, now: float
    ) -> GroupFinished:
        """Make the rows of a group visible, all at once."""
        partition_id = self._groups.partition_id(reservation_id)
        result = self._groups.finish(request_id, reservation_id, weight_version, now)
        if partition_id is not None:
            self._line.serve(self._state.partition(partition_id), now)
        return result

    def abort_group(self, request_id: str, reservation_id: str, reason: str, now: float) -> GroupAborted:
        """Remove the rows of a reserved group."""
        return self._groups.abort(request_id, reservation_id, reason, now)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def open_session(self, session_id: str, client_name: str, grace_s: float | None, now: float) -> SessionInfo:
        """Open a session (empty session_id), or resume one. grace_s: None for the usual; of a resumed one it stays."""
        return self._state.sessions.open(session_id, client_name, grace_s, now)

    def heartbeat(self, session_id: str, now: float) -> bool:
        """Note that a session's client lives; False when the session does not."""
        return self._state.sessions.heard(session_id, now)

    def close_session(self, session_id: str, now: float) -> None:
        """End a session in order: what it holds goes back as not used. Unknown sessions are fine."""
        self._sessions.close(session_id, now)

    def advance(self, now: float, stalled_s: float = 0.0) -> None:
        """Do what is due by now: end sessions that have died, give back what was delayed. stalled_s: for how long
        nobody has listened to signs of life since the last call, in seconds.
        """
        self._sessions.advance(now, stalled_s)

    @property
    def next_due(self) -> float | None:
        """When to call `advance`; None while nothing can come due."""
        return self._sessions.next_due

    def sample(self, partition_id: str, sample_id: str) -> SampleStory:
        """What a sample holds, where it stands, and what happened to it. Refusal PARTITION_NOT_FOUND."""
        partition = self._state.partition(partition_id)
        holder = self._open_claims.holder
        return story(partition, sample_id, lambda task, slot: holder(partition, task, slot), self._state.journal)

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
        self._line.drain()
        self._writes.drain()

    def totals(self, now: float = 0.0) -> Totals:
        """now: until when times are counted."""
        space, sessions, since = self._state.space, self._state.sessions, self._writes.admission.waits_since
        return Totals(
            memory_budget_bytes=self.limits.memory_bytes,
            memory_used_bytes=space.used,
            partitions=len(self._state.partitions),
            rows=self._state.total_rows,
            open_claims=len(self._open_claims),
            waiting_claims=self._line.callers,
            waiting_puts=self._writes.admission.waiting,
            sessions=len(sessions),
            open_groups=self._groups.open,
            largest_free_bytes=space.largest_free,
            free_pieces=space.free_pieces,
            longest_put_wait_s=None if since is None else max(now - since, 0.0),
            sessions_opened=sessions.opened,
            sessions_ended=dict(sessions.ended),
            draining=self._state.draining,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError that names the first law that does not hold. For tests; cost is O(rows)."""
        invariants.check(self._state, self._open_claims, self._writes, self._reads)

"""The data plane as a deterministic state machine.

A call goes in, with `now` (monotonic, seconds); its answer comes out. `take_effects` returns what else calls have
caused: waiting calls that were admitted, granted or failed, sessions that expired. Nothing here waits, does I/O or
reads a clock, and chance comes from the seeds of calls only, so the same calls at the same times always give the same
answers, effects and state.

    answer = plane.apply(FinishWrite(ticket), now)
    for effect in plane.take_effects():
        ...  # wake the caller that waits with effect.ticket

`apply` is the only way to change the core; see `core.turn`. A call that raises `Refusal` has changed nothing, apart
from ending an earlier attempt of the same request. All other methods only read. Values of rows are not here: the core
decides where in the arena they are, the shell copies them. Not thread-safe: one call at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dataplane_server.core.calls.answers import (
    CommitResult,
    ConsumptionInfo,
    DeadLetter,
    Effect,
    PartitionInfo,
    PutResult,
    Reservation,
    SampleHistory,
    Stored,
    Totals,
    Waiting,
)
from dataplane_server.core.calls.causes import Explanation
from dataplane_server.core.calls.definitions import merged
from dataplane_server.core.calls.filters import Filter, check_filter
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.listings import ClaimInfo, GroupList, Holder, OpenSessionInfo, SamplePage, WaitInfo
from dataplane_server.core.calls.names import check_distinct
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import Call, StoreValues
from dataplane_server.core.calls.values import Definition, Int64Array, Run
from dataplane_server.core.rows.regions import Mirror, Region
from dataplane_server.core.state.answers import Answers
from dataplane_server.core.state.descriptions import describe_partition, describe_task
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State
from dataplane_server.core.stats import invariants
from dataplane_server.core.stats.digest import digest
from dataplane_server.core.stats.history import History, sample_history
from dataplane_server.core.stats.listings import list_claims, list_groups, list_samples, list_sessions, list_waits
from dataplane_server.core.turn import Turn
from dataplane_server.core.verbs.verbs import Verbs

A = TypeVar("A")
Parts = tuple[State, Verbs, Answers, History]


class DataPlane:
    """All partitions of one server. incarnation: makes ids of claims, sessions and reservations differ from those of
    other server lives. first_generation: must be above every generation of earlier lives.
    """

    def __init__(self, limits: Limits | None = None, *, incarnation: str = "c", first_generation: int = 1) -> None:
        limits = limits or Limits()
        state = State(limits, incarnation, first_generation)
        self.parts = state, Verbs(state), Answers(limits), History(limits.remembered_events)

    @property
    def incarnation(self) -> str:
        """Names this state: the same after a restart that went on from the log, another one after a new beginning."""
        return self._state.incarnation

    @property
    def next_generation(self) -> int:
        """Above the generations of all rows that there have been."""
        return self._state.generations.next

    @property
    def parts(self) -> Parts:
        """Its whole state. Setting it makes this the plane that had these parts."""
        return self._state, self._verbs, self._answers, self._history

    @parts.setter
    def parts(self, parts: Parts) -> None:
        self._state, self._verbs, self._answers, self._history = parts
        self.limits = self._state.limits
        self._turn = Turn(*parts)

    def apply(self, call: Call[A], now: float) -> A:
        """Carry out a call at a time (monotonic, s); see `core.calls.requests`. Raises Refusal if it cannot be
        served.
        """
        return self._turn.apply(call, now)

    def store(
        self, call: StoreValues, now: float, fill: Callable[[Sequence[Run]], None]
    ) -> Stored | Reservation | Waiting | PutResult | CommitResult:
        """Apply a write whose values are at hand. fill: writes them to runs, as soon as these are known."""
        answer = self.apply(call, now)
        if isinstance(answer, Stored):
            fill(answer.runs)
        return answer

    def take_effects(self) -> list[Effect]:
        """What calls since the last take have caused for other callers, in order."""
        effects, self._state.effects = self._state.effects, []
        return effects

    # -- partitions ----------------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> Mapping[str, Partition]:
        """All partitions by id, for reading."""
        return self._state.partitions

    def partition_info(self, partition_id: str, now: float = 0.0) -> PartitionInfo:
        """now: times are counted until then. Refusal PARTITION_NOT_FOUND."""
        return describe_partition(self._state.partition(partition_id), now)

    def is_registered(self, definition: Definition) -> bool:
        """Whether a registration of this would change nothing. Refusal PARTITION_DIFFERS if it contradicts what is."""
        partition = self._state.partitions.get(definition.partition_id)
        return partition is not None and merged(partition.definition, definition) == partition.definition

    def consumption(self, partition_id: str, tasks: Sequence[str], now: float = 0.0) -> ConsumptionInfo:
        """The progress of tasks. `consumed` if num_samples rows were put, or the partition is closed, and every task
        has consumed all rows.
        """
        partition = self._state.partition(partition_id)
        if not tasks:
            message = f"a consumption query of partition {partition_id!r} names no task"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition_id)
        check_distinct("task", tasks)
        infos = tuple(describe_task(partition, name, now) for name in tasks)
        announced = partition.rows.closed or partition.all_put
        return ConsumptionInfo(announced and all(i.consumed_rows == len(partition.rows) for i in infos), infos)

    # -- memory --------------------------------------------------------------------------------------------------------

    @property
    def releases(self) -> int:
        """How many releases of memory were deferred since the beginning; see Settle."""
        return self._state.space.releases

    @property
    def releases_deferred(self) -> bool:
        """Whether memory that was released waits for Settle."""
        return self._state.space.has_deferred

    def free_ranges(self) -> list[tuple[int, int]]:
        """Where memory is free: (start, end), in any order, none twice."""
        return [*self._state.space.free_ranges(), *self._state.space.pending_ranges()]

    def nodes(self) -> list[Region]:
        """The nodes of a cluster that are there or live on in mirrors, for reading."""
        return self._verbs.nodes.up()

    def mirrors_of(self, node: int) -> tuple[Mirror, ...]:
        """As `Nodes.mirrors_of`, of a cluster."""
        return self._verbs.nodes.mirrors_of(node)

    def versions(self, offsets: Int64Array, sizes: Int64Array) -> Int64Array:
        """As `Nodes.versions`, of a cluster."""
        return self._verbs.nodes.versions(offsets, sizes)

    def layout(self, ticket: int) -> tuple[Int64Array, Int64Array] | None:
        """Offsets and bytes of the values of a write under way, an array row for each column; None without space."""
        return self._verbs.admission.layout(ticket)

    def once_layout(self, ticket: int) -> tuple[Int64Array, Int64Array] | None:
        """As `layout`, of the values whose digests FinishWrite needs; None if there is none."""
        return self._verbs.writes.once_layout(ticket)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def holds_reservation(self, ticket: int) -> bool:
        """Whether bytes may still be copied into the runs of a reservation. Ask before every copy."""
        return self._verbs.writes.is_open(ticket)

    def partition_of(self, held_id: str) -> str | None:
        """The partition of a claim or of a reserved group; None if there is no such claim or group any more."""
        return self._verbs.table.partition_of(held_id) or self._verbs.groups.partition_of(held_id)

    def dead_letters(self, partition_id: str, task: str) -> list[DeadLetter]:
        """Rows that a task has given up, in order of arrival; at most `max_rows_per_call`."""
        partition = self._state.partition(partition_id)
        deliveries = partition.task(task).deliveries
        slots = partition.task(task).dead_slots()
        slots = slots[np.argsort(partition.rows.generations(slots))][: self.limits.max_rows_per_call]
        counts = deliveries.counts(slots).tolist()
        reasons = map(deliveries.reason, slots.tolist())
        return list(map(DeadLetter, partition.rows.ids(slots), counts, reasons))

    def sample(self, partition_id: str, sample_id: str) -> SampleHistory:
        """Contents, state and history of a sample. Refusal PARTITION_NOT_FOUND."""
        return sample_history(
            self._state.partition(partition_id), sample_id, self._verbs.table, self._verbs.steps, self._history
        )

    def list_samples(
        self,
        partition_id: str,
        task: str,
        states: Collection[str],
        where: Filter,
        page_size: int,
        page: int,
        now: float = 0.0,
    ) -> SamplePage:
        """Rows in order of arrival; see `stats.listings`. Refusal INVALID_REQUEST for states without a task, and for a
        wrong filter.
        """
        check_filter(where, with_age=True)
        partition, most = self._state.partition(partition_id), self.limits.max_rows_per_call
        if not 1 <= page_size <= most:
            message = f"partition {partition_id!r}: a page must have 1 to {most} rows, got {page_size}"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition_id)
        if states and not task:
            message = f"partition {partition_id!r}: states belong to a task; name the task, too"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition_id)
        if task:
            partition.task(task)
        return list_samples(self._state, partition, task, states, where, page_size, page, now)

    # -- claims and sessions -------------------------------------------------------------------------------------------

    def list_groups(self, partition_id: str, now: float) -> GroupList:
        """Reserved groups, the oldest first, and those that were given up. Refusal PARTITION_NOT_FOUND."""
        return list_groups(self._state, self._state.partition(partition_id), now)

    def list_claims(self, partition_id: str, task: str, now: float) -> tuple[list[ClaimInfo], list[WaitInfo]]:
        """Open claims and queued claims, the oldest first. Empty names: of all partitions, of all tasks."""
        if partition_id:
            partition = self._state.partition(partition_id)
            if task:
                partition.task(task)
        claims = list_claims(self._verbs.table, self._state, partition_id, task, now)
        return claims, list_waits(self._verbs.queue, self._state, partition_id, task, now)

    def list_sessions(self, now: float) -> list[OpenSessionInfo]:
        """Open sessions, the oldest first."""
        return list_sessions(self._verbs.table, self._state, now)

    def owner_of(self, session_id: str) -> str | None:
        """The name of the caller who opened a session; None if it is not open."""
        return self._state.sessions.owner(session_id)

    # -- waits ---------------------------------------------------------------------------------------------------------

    def explain_waits(self, partition_id: str, task: str, now: float) -> Explanation:
        """Why calls wait; see `stats.waits`. Refusal PARTITION_NOT_FOUND, TASK_NOT_REGISTERED."""
        return self._turn.waits.explain(partition_id, task, now)

    def waiting_causes(self, now: float) -> Iterator[tuple[str, str, str, int]]:
        """Partition, task, main cause and number of calls, wait by wait; see `Waits.causes`."""
        return self._turn.waits.causes(now)

    # -- the whole -----------------------------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When to apply Advance; None while nothing can become due."""
        return self._verbs.expiry.next_due

    @property
    def has_deferred_frees(self) -> bool:
        """Whether MergeFreeRanges has something to do."""
        return self._state.space.pending_frees > 0

    def totals(self, now: float = 0.0) -> Totals:
        """now: times are counted until then."""
        space, sessions, admission = self._state.space, self._state.sessions, self._verbs.admission
        since = admission.waits_since
        return Totals(
            memory_budget_bytes=space.capacity,
            memory_used_bytes=space.used,
            partitions=len(self._state.partitions),
            rows=self._state.total_rows,
            open_claims=len(self._verbs.table),
            waiting_claims=self._verbs.queue.callers,
            waiting_puts=admission.waiting,
            waiting_for_room=self._verbs.flow.waiting,
            sessions=len(sessions),
            open_groups=self._verbs.groups.open,
            largest_free_bytes=space.largest_free,
            free_pieces=space.free_pieces,
            longest_put_wait_s=None if since is None else max(now - since, 0.0),
            sessions_opened=sessions.opened,
            sessions_ended=dict(sessions.ended),
            draining=self._state.draining,
            held_bytes=self._verbs.holders.held_bytes,
        )

    def holders(self, most: int) -> list[Holder]:
        """The clients that hold most memory beside rows, the largest first; the rest together as "others"."""
        return self._verbs.holders.largest(most)

    def digest(self) -> str:
        """A hash of the whole state, equal for equal histories of calls on any machine. Costs O(rows)."""
        return digest(*self.parts)

    def check_invariants(self) -> None:
        """Raise AssertionError that names the first law that does not hold. For tests. Costs O(rows)."""
        invariants.check(self._state, self._verbs)

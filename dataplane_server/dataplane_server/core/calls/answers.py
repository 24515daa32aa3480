"""Answers of calls and queries, and effects: what a call causes for other callers.

All are plain and immutable. Arrays must not be written to afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.columns import Shape
from dataplane_server.core.calls.flow import FlowPolicy
from dataplane_server.core.calls.policies import TaskPolicy
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.values import Copy, Definition, Int64Array, Run, Runs, Tags


def _no_rows() -> Int64Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The call is queued. An effect with this ticket follows."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """Arena space for the values of a put or commit. The bytes of the stream go to the runs, in their order.

    copies: what an append finds in its rows. Make these copies right before FinishWrite, which frees the sources. If
    the sources are other bytes by then, FinishWrite is refused.
    """

    ticket: int
    runs: tuple[Run, ...]
    size_bytes: int
    copies: tuple[Copy, ...] = ()


ROW_CREATED, ROW_REPLACED, ROW_CONSUMED = 0, 1, 2
"""What a put did to a row. ROW_CONSUMED: it existed, and a task has consumed it, which does not get it again."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """abort_hint: of a put to a reserved group, why its rows are too stale for a task already. outcomes: ROW_CREATED,
    ROW_REPLACED or ROW_CONSUMED for each row; empty if all are new, and of puts under a claim or to a reserved group.
    """

    created_rows: int
    size_bytes: int
    generations: Int64Array = field(default_factory=_no_rows, compare=False)
    abort_hint: str = field(default="", compare=False)
    outcomes: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CommitResult:
    consumed_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A write was applied. Its values go to the runs, in their order, before any other call. offsets, sizes: of the
    values, an array row for each column.
    """

    result: PutResult | CommitResult
    runs: tuple[Run, ...]
    offsets: Int64Array
    sizes: Int64Array


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    released_rows: int


@dataclass(frozen=True, slots=True)
class ClearResult:
    cleared_rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Retired:
    """Rows and reserved groups of old weight versions that were removed."""

    rows: int
    groups: int


@dataclass(frozen=True, slots=True)
class DropResult:
    dropped_rows: int


@dataclass(frozen=True, slots=True)
class ResetResult:
    reset_rows: int
    fenced_claims: int


@dataclass(frozen=True, slots=True)
class GroupPart:
    """The rows of a group within a grant. group_id is empty for a row without a group."""

    group_id: str
    rows: int
    start_weight_version: int | None = None
    end_weight_version: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Granted rows. claim_id is empty if delivery was consumption. groups: only if whole groups were requested.
    tag_bytes: memory of the tags. staleness: in versions, -1 if unknown. committed: a shard was committed before.
    """

    claim_id: str
    sample_ids: tuple[str, ...]
    sequence_lengths: Int64Array
    tags: tuple[Tags, ...]
    generations: Int64Array = field(default_factory=_no_rows, compare=False)
    deliveries: Int64Array = field(default_factory=_no_rows, compare=False)
    groups: tuple[GroupPart, ...] = ()
    tag_bytes: int = field(default=0, compare=False, repr=False)
    staleness: Int64Array = field(default_factory=_no_rows, compare=False)
    committed: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows that were drawn, in that order. draws: of each row, this one included. probabilities: of each row in the
    first draw. staleness, tag_bytes: as in Grant.
    """

    sample_ids: tuple[str, ...]
    sequence_lengths: Int64Array
    tags: tuple[Tags, ...]
    generations: Int64Array
    draws: Int64Array
    probabilities: npt.NDArray[np.float64]
    staleness: Int64Array
    tag_bytes: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reserved group, with the generations of its rows."""

    reservation_id: str
    generations: Int64Array = field(compare=False)


@dataclass(frozen=True, slots=True)
class GroupFinished:
    rows: int


@dataclass(frozen=True, slots=True)
class GroupAborted:
    """ended: whether the group is no longer reserved."""

    removed_rows: int
    ended: bool


@dataclass(frozen=True, slots=True)
class SessionInfo:
    session_id: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    sample_id: str
    deliveries: int
    reason: str


@dataclass(frozen=True, slots=True)
class SampleTask:
    """The state of a row for a task. claim_id is empty unless the row is claimed. step, dp_rank: of the shard that has
    it; None unless a step is remembered that has it.
    """

    task: str
    state: str
    deliveries: int
    claim_id: str
    step: int | None = None
    dp_rank: int | None = None


@dataclass(frozen=True, slots=True)
class SampleEvent:
    """Something that happened to samples of one id. at: the `now` of the call."""

    at: float
    what: str
    who: str = ""
    task: str = ""
    claim_id: str = ""
    fields: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResidentSample:
    """Contents and state of a resident row. hidden: its group is still reserved. digests: of the values of its fields,
    if the partition has some.
    """

    generation: int
    sequence_length: int
    fields: tuple[str, ...]
    tags: Tags
    group_id: str
    hidden: bool
    tasks: tuple[SampleTask, ...]
    digests: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SampleHistory:
    """The row, if it is resident, and what happened to rows of its id, oldest first."""

    resident: ResidentSample | None
    events: tuple[SampleEvent, ...]


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """Layout of one field of a read. entries: int64, one a row."""

    name: str
    shape: Shape
    entries: Int64Array


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Where the bytes of a read lie, column after column. They stay there until EndRead(ticket). digests: of the
    values, a row for each column, where the partition has some.
    """

    ticket: int
    columns: tuple[ReadColumn, ...]
    sequence_lengths: Int64Array
    runs: Runs
    size_bytes: int
    digests: Int64Array | None = None


@dataclass(frozen=True, slots=True)
class FieldInfo:
    name: str
    shape: Shape | None
    per_token: bool
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Figures of a task: resident rows by state; rows consumed since registration; queued claims; rows ever granted;
    ended deliveries by how they ended; seconds by state of the task; ages and waits in seconds (None: nothing waits,
    or not known); claims granted; untaken rows that are too stale; others that do not fit the policy's filter and have
    all that it names; the greatest step that is remembered, and the one with which a restarted trainer goes on.
    """

    task: str
    untaken_rows: int
    claimed_rows: int
    consumed_rows: int
    consumed_rows_total: int
    waiting_claims: int
    delayed_rows: int = 0
    dead_rows: int = 0
    delivered_rows_total: int = 0
    ended_deliveries: Mapping[str, int] = field(default_factory=dict)
    state_seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    ready_rows: int | None = field(default=None, compare=False)
    oldest_untaken_age_s: float | None = field(default=None, compare=False)
    weight_version_lag: int | None = field(default=None, compare=False)
    longest_wait_s: float | None = field(default=None, compare=False)
    claims_total: int = field(default=0, compare=False)
    stale_rows: int = 0
    policy: TaskPolicy = field(default_factory=TaskPolicy)
    excluded_rows: int = 0
    newest_step: int | None = None
    next_step: int = 0


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """flow: as set. waiting_calls: puts, groups and draws that wait at the entrance. waits_because: why the first of
    them does.
    """

    definition: Definition
    fields: tuple[FieldInfo, ...]
    tasks: tuple[TaskInfo, ...]
    rows: int
    size_bytes: int
    rows_put_total: int
    rows_cleared_total: int
    removed_rows: Mapping[str, int] = field(default_factory=dict)
    open_groups: int = 0
    oldest_row_age_s: float | None = field(default=None, compare=False)
    newest_weight_version: int | None = field(default=None, compare=False)
    written_bytes_total: int = field(default=0, compare=False)
    read_bytes_total: int = field(default=0, compare=False)
    read_rows_total: int = field(default=0, compare=False)
    closed: bool = False
    weight_version: int | None = None
    flow: FlowPolicy = field(default_factory=FlowPolicy)
    waiting_calls: int = 0
    waits_because: str = field(default="", compare=False)
    deduplicated_bytes_total: int = 0


@dataclass(frozen=True, slots=True)
class Registered:
    """A partition after its registration, and what that did."""

    partition: PartitionInfo
    outcome: Literal["created", "unchanged", "extended", "replaced"]


@dataclass(frozen=True, slots=True)
class CloseResult:
    """How many queued calls ended because too few rows are left for them."""

    ended_claims: int


@dataclass(frozen=True, slots=True)
class ConsumptionInfo:
    consumed: bool
    tasks: tuple[TaskInfo, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """Figures of the whole server. waiting_puts: for space. waiting_for_room: calls at the entrances of partitions.
    sessions_ended: by how they ended. held_bytes: what no clear frees, see `verbs.holders`. memory_budget_bytes: that
    of all nodes of a cluster together.
    """

    memory_budget_bytes: int
    memory_used_bytes: int
    partitions: int
    rows: int
    open_claims: int
    waiting_claims: int
    waiting_puts: int
    sessions: int
    open_groups: int
    largest_free_bytes: int = field(default=0, compare=False)
    free_pieces: int = field(default=0, compare=False)
    longest_put_wait_s: float | None = field(default=None, compare=False)
    sessions_opened: int = field(default=0, compare=False)
    sessions_ended: Mapping[str, int] = field(default_factory=dict, compare=False)
    draining: bool = field(default=False, compare=False)
    waiting_for_room: int = 0
    held_bytes: int = field(default=0, compare=False)


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting put or commit has its arena space."""

    ticket: int
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Granted:
    """A waiting claim has its rows."""

    ticket: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class Answered:
    """A waiting group was reserved, or a waiting draw was made."""

    ticket: int
    answer: Reserved | Drawn


@dataclass(frozen=True, slots=True)
class Failed:
    """A waiting call has failed."""

    ticket: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """A session expired after silent_s seconds without a heartbeat. claims, rows of these claims, and groups that it
    held have ended. ticket: -1, since no call waits for this.
    """

    ticket: int
    session_id: str
    client_name: str
    silent_s: float
    claims: int
    rows: int
    groups: int


Effect = Admitted | Granted | Answered | Failed | SessionExpired

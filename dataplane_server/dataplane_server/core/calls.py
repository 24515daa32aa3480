"""What goes into the core and what comes out: the values of its calls, its answers, and its effects.

All are plain and immutable. Arrays handed in or out are not to be written to afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dataplane_server.core.columns import ColumnSpec, Int64Array, Shape
from dataplane_server.core.refusal import Refusal
from dataplane_server.core.rows import Tags
from dataplane_server.core.space import Run

Balance = Literal["rows", "tokens"]
"""How a step is split between ranks: in order, or by sums of sequence lengths."""


def _no_rows() -> Int64Array:
    return np.zeros(0, np.int64)


# -- calls -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Definition:
    """What a partition is meant to hold, and for whom."""

    partition_id: str
    fields: tuple[str, ...]
    tasks: tuple[str, ...]
    num_samples: int = 0
    per_token_fields: frozenset[str] = frozenset()
    grpo_group_size: int | None = None
    enums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_deliveries: int = 0


@dataclass(frozen=True, slots=True)
class Put:
    """Columns and tags for rows. tags, sequence_lengths (tokens, -1 unknown) and generations are None or have one entry
    a row. claim_id: only while that claim is open. reservation_id: only while that group is reserved. shared: no sample
    ids, and columns of one row, which every row of the group is to have. caller: who puts, for the row's story.
    """

    request_id: str
    partition_id: str
    sample_ids: Sequence[str]
    columns: Sequence[ColumnSpec] = ()
    tags: Sequence[Tags] | None = None
    sequence_lengths: Int64Array | None = None
    generations: Int64Array | None = None
    claim_id: str = ""
    reservation_id: str = ""
    shared: bool = False
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """End of a claim, with columns for its rows or none."""

    request_id: str
    claim_id: str
    columns: Sequence[ColumnSpec] = ()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Rows wanted for a task. consume: delivery is consumption, and there is nothing to commit. session_id: who is to
    hold the claim; empty for nobody. whole_groups: sizes count groups. max_tokens: of all rows together, 0 for no
    limit.
    """

    request_id: str
    partition_id: str
    task: str
    required_fields: tuple[str, ...]
    batch_size: int
    min_size: int
    consume: bool = False
    session_id: str = ""
    whole_groups: bool = False
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """The rows of one rank wanted for a step; sizes and max_tokens are of all ranks together."""

    request_id: str
    partition_id: str
    task: str
    step: int
    dp_rank: int
    dp_world: int
    required_fields: tuple[str, ...]
    batch_size: int
    min_size: int
    balance: Balance
    max_tokens: int = 0
    whole_groups: bool = False
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Reserve:
    """The rows of a prompt, to be reserved by a session (empty: by nobody)."""

    request_id: str
    partition_id: str
    group_id: str
    sample_ids: Sequence[str]
    session_id: str = ""
    weight_version: int | None = None


# -- answers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not yet: an effect with this ticket will tell."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for the values of a put or commit. The bytes of the stream go to the runs, in their order."""

    ticket: int
    runs: tuple[Run, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PutResult:
    created_rows: int
    size_bytes: int
    generations: Int64Array = field(default_factory=_no_rows, compare=False)


@dataclass(frozen=True, slots=True)
class CommitResult:
    consumed_rows: int


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    released_rows: int


@dataclass(frozen=True, slots=True)
class ClearResult:
    cleared_rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DropResult:
    dropped_rows: int


@dataclass(frozen=True, slots=True)
class ResetResult:
    reset_rows: int
    fenced_claims: int


@dataclass(frozen=True, slots=True)
class GroupPart:
    """The rows of a group within a grant; group_id is empty for a row outside of any."""

    group_id: str
    rows: int
    start_weight_version: int | None = None
    end_weight_version: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Rows handed out. claim_id is empty when delivery was consumption. groups: when they were asked for whole."""

    claim_id: str
    sample_ids: tuple[str, ...]
    sequence_lengths: Int64Array
    tags: tuple[Tags, ...]
    generations: Int64Array = field(default_factory=_no_rows, compare=False)
    deliveries: Int64Array = field(default_factory=_no_rows, compare=False)
    groups: tuple[GroupPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reserved group. generations: of its rows."""

    reservation_id: str
    generations: Int64Array = field(compare=False)


@dataclass(frozen=True, slots=True)
class GroupFinished:
    rows: int


@dataclass(frozen=True, slots=True)
class GroupAborted:
    removed_rows: int


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
    """Where a row stands with a task; claim_id is empty unless it is claimed."""

    task: str
    state: str
    deliveries: int
    claim_id: str


@dataclass(frozen=True, slots=True)
class SampleEvent:
    """Something that happened to samples of one id; `at` as the `now` of the call."""

    at: float
    what: str
    who: str = ""
    task: str = ""
    claim_id: str = ""
    fields: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResidentSample:
    """What a row that is there holds and where it stands. hidden: its group is still reserved."""

    generation: int
    sequence_length: int
    fields: tuple[str, ...]
    tags: Tags
    group_id: str
    hidden: bool
    tasks: tuple[SampleTask, ...]


@dataclass(frozen=True, slots=True)
class SampleStory:
    """The row, if it is there, and what happened to rows of its id, oldest first."""

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
    """Where the bytes of a read lie, column after column; they stay there until end_read(ticket)."""

    ticket: int
    columns: tuple[ReadColumn, ...]
    sequence_lengths: Int64Array
    runs: tuple[Run, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FieldInfo:
    name: str
    shape: Shape | None
    per_token: bool
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Resident rows by state, rows consumed since registration, claims that wait; rows ever handed out, deliveries
    ended by how, seconds by state of the task; what waits and for how long (None: nothing, or not known); claims
    granted.
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


@dataclass(frozen=True, slots=True)
class PartitionInfo:
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


@dataclass(frozen=True, slots=True)
class ConsumptionInfo:
    consumed: bool
    tasks: tuple[TaskInfo, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """The whole server at a glance. sessions_ended: by how."""

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


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting put or commit has room now."""

    ticket: int
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Granted:
    """A waiting claim has its rows."""

    ticket: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class Failed:
    """A waiting call has ended without an answer."""

    ticket: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class SessionDied:
    """Nothing was heard of a session for silent_s seconds: claims and groups that it held have ended. rows: of the
    claims. ticket: -1, since nobody waits for this.
    """

    ticket: int
    session_id: str
    client_name: str
    silent_s: float
    claims: int
    rows: int
    groups: int


Effect = Admitted | Granted | Failed | SessionDied

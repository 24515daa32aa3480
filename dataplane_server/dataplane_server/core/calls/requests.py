"""Calls: every change of the core is one of these values, and passes `DataPlane.apply(call, now)`.

A call is a frozen record of plain data: numbers, strings, tuples, arrays, and records of these. It holds no callback,
clock or socket, so it can be logged and applied again. `Call[A]` is answered with an A, or refused.

A call with a `request_id` may be repeated by a caller that got no answer. It is carried out once: a repeated call gets
the answer of the first one, and one that is still under way is taken over by the repeated call. Another call under the
same request_id is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dataplane_server.core.calls.answers import (
    ClearResult,
    CloseResult,
    CommitResult,
    Drawn,
    DropResult,
    Grant,
    GroupAborted,
    GroupFinished,
    PartitionInfo,
    PutResult,
    ReadPlan,
    Registered,
    ReleaseResult,
    Reservation,
    Reserved,
    ResetResult,
    Retired,
    SessionInfo,
    Stored,
    Waiting,
)
from dataplane_server.core.calls.columns import ColumnSpec
from dataplane_server.core.calls.filters import ALL_ROWS, Filter
from dataplane_server.core.calls.flow import FlowPolicy
from dataplane_server.core.calls.policies import ClaimOrder, TaskPolicyOf
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.values import Balance, BatchUnit, Definition, DrawStrategy, Int64Array, Tags

Answer = TypeVar("Answer", covariant=True)


class Call(Generic[Answer]):
    """A change of the core that is answered with an Answer."""

    __slots__ = ()


class RepeatableCall(Call[Answer]):
    """A call that its caller may repeat under the same request_id (1 to 64 bytes)."""

    __slots__ = ()
    request_id: str


# -- partitions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisterPartition(RepeatableCall[Registered]):
    """Create a partition, or add to its definition what this one declares beyond it. replace: put this definition in
    its place, reset the cursors, and open the partition again. Rows stay in any case.

    The answer describes the partition before queued claims are served.
    """

    request_id: str
    definition: Definition
    replace: bool = False


@dataclass(frozen=True, slots=True)
class ExtendPartition(RepeatableCall[PartitionInfo]):
    """Add fields and tasks to a partition, and announce more rows. per_token_fields: those of the fields that are."""

    request_id: str
    partition_id: str
    fields: tuple[str, ...] = ()
    per_token_fields: frozenset[str] = frozenset()
    tasks: tuple[str, ...] = ()
    num_samples: int = 0


@dataclass(frozen=True, slots=True)
class ClosePartition(RepeatableCall[CloseResult]):
    """Announce the end of data: from now on only groups that are reserved get new rows. Queued claims for which too few
    rows are left end.
    """

    request_id: str
    partition_id: str


@dataclass(frozen=True, slots=True)
class DropPartition(RepeatableCall[DropResult]):
    """Remove a partition, its rows and claims. Dropping an unknown partition removes no row."""

    request_id: str
    partition_id: str


@dataclass(frozen=True, slots=True)
class SetWeightVersion(RepeatableCall[Retired]):
    """The trainer has these weights now. retire_below: remove rows and reserved groups of versions before this one."""

    request_id: str
    partition_id: str
    version: int
    retire_below: int | None = None


@dataclass(frozen=True, slots=True)
class SetPolicies(RepeatableCall[PartitionInfo]):
    """Replace the policies of tasks, by name, and of the partition's entrance; None and others keep theirs."""

    request_id: str
    partition_id: str
    tasks: tuple[TaskPolicyOf, ...]
    flow: FlowPolicy | None = None


@dataclass(frozen=True, slots=True)
class ClearSamples(RepeatableCall[ClearResult]):
    """Remove rows (sample_ids None: all of the partition) that fit a filter. Skips ids that do not exist and, with
    generations, ids that have become other rows.
    """

    request_id: str
    partition_id: str
    sample_ids: Sequence[str] | None
    generations: Int64Array | None = None
    where: Filter = ALL_ROWS


# -- writes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutSamples(RepeatableCall[Reservation | Waiting | PutResult]):
    """Begin a put: check it and reserve arena space for its values. A PutResult means that it was applied before.

    tags, sequence_lengths (tokens, -1 unknown) and generations are None or have one entry a row. claim_id: only while
    that claim is open. reservation_id: only while that group is reserved. shared: no sample ids, and columns of one
    row, which every row of the group gets. caller: who puts, for the row's history. add_to_group: samples that do not
    exist become rows of the group. append: the columns, of per-token fields, are added to the end of the rows' values.
    only_if: only while every row exists and fits. once: columns whose values are not kept twice. node: for their bytes.
    digest: stands for the whole request when it is repeated, see `calls.fingerprints`; empty for none. create_only:
    only while no row exists. existing_only: only while every row exists. hashed: the values have digests, which come
    with FinishWrite or StoreValues.
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
    add_to_group: bool = False
    append: bool = False
    only_if: Filter | None = None
    once: tuple[str, ...] = ()
    node: int = 0
    digest: bytes = b""
    create_only: bool = False
    existing_only: bool = False
    hashed: bool = False


@dataclass(frozen=True, slots=True)
class CommitClaim(RepeatableCall[Reservation | Waiting | CommitResult]):
    """Begin to end a claim, with columns for its rows. Without columns the claim ends here. node, hashed: as of
    PutSamples.
    """

    request_id: str
    claim_id: str
    columns: Sequence[ColumnSpec] = ()
    node: int = 0
    hashed: bool = False


@dataclass(frozen=True, slots=True)
class StoreValues(Call[Stored | Reservation | Waiting | PutResult | CommitResult]):
    """Carry out a put or commit whose values are at hand, in one step. The answer is that of the write alone if it has
    to wait, was applied before, appends, puts values `once`, or declares another size than these. checksums,
    value_digests: as of FinishWrite.
    """

    write: PutSamples | CommitClaim
    size_bytes: int
    checksums: bytes = b""
    value_digests: bytes = b""


@dataclass(frozen=True, slots=True)
class ShareReservation(Call[None]):
    """The caller writes to its reservation directly, through shared memory. The space stays reserved until FinishWrite
    or AbortWrite, even if a repeated request takes over from this one.
    """

    ticket: int


@dataclass(frozen=True, slots=True)
class FinishWrite(Call[PutResult | CommitResult]):
    """Apply a put or commit whose bytes are all in place. The reservation ends even if the call is refused. checksums:
    of the values, for the log; the core compares them with value_digests, if it has both. digests: 16 bytes for each
    value that is put `once`. value_digests: see `calls.digests`; the core keeps them where the partition has some.
    """

    ticket: int
    checksums: bytes = b""
    digests: bytes = b""
    value_digests: bytes = b""


@dataclass(frozen=True, slots=True)
class AbortWrite(Call[None]):
    """Forget a write that will not finish. Unknown tickets are ignored."""

    ticket: int


@dataclass(frozen=True, slots=True)
class GiveUpWrite(Call[Refusal]):
    """End the wait for arena space at the caller's deadline. Answers with what to tell the caller."""

    ticket: int


# -- reads -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginRead(Call[ReadPlan]):
    """Pin rows until EndRead and say where their values lie. With generations: those very rows. token_starts,
    token_ends: of per-token fields only the entries between; one number for all rows, or one a row. Both or neither.
    ticket: of the read, in a log that has not all reads; 0 for the next number. caller: its name. checks_digests: it
    compares the values with their digests.
    """

    partition_id: str
    sample_ids: Sequence[str]
    fields: Sequence[str]
    generations: Int64Array | None = None
    token_starts: Int64Array | None = None
    token_ends: Int64Array | None = None
    ticket: int = 0
    caller: str = ""
    checks_digests: bool = False


@dataclass(frozen=True, slots=True)
class EndRead(Call[None]):
    """Unpin the rows of a read. Unknown tickets are ignored."""

    ticket: int


# -- claims ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimSamples(RepeatableCall[Grant | Waiting]):
    """Take ready rows for a task, or wait for them.

    consume: delivery is consumption, and there is nothing to commit. session_id: the session that will hold the claim;
    empty for none. whole_groups: groups are not split. max_tokens: of all rows together, 0 for no limit. unit: what the
    sizes count; None for groups if whole_groups, else rows. where: only rows (or groups of rows) that fit. order: None
    for that of the task's policy. node: whose rows are preferred; see `verbs.locality`.
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
    unit: BatchUnit | None = None
    where: Filter = ALL_ROWS
    order: ClaimOrder | None = None
    order_tag: str = ""
    node: int = 0


@dataclass(frozen=True, slots=True)
class ClaimShard(RepeatableCall[Grant | Waiting]):
    """Take the rows of one rank for a step, or wait. Sizes and max_tokens are of all ranks. node: the caller's. again:
    also if they were committed before the session was opened.
    """

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
    unit: BatchUnit | None = None
    where: Filter = ALL_ROWS
    order: ClaimOrder | None = None
    order_tag: str = ""
    node: int = 0
    again: bool = False


ClaimCall = ClaimSamples | ClaimShard


def unit_of(call: ClaimCall) -> BatchUnit:
    """What the sizes of a claim count."""
    return call.unit or ("groups" if call.whole_groups else "rows")


@dataclass(frozen=True, slots=True)
class DrawSamples(RepeatableCall[Drawn | Waiting]):
    """Draw rows without taking them, or wait for the band. task: whose policy holds; empty for none.
    max_times_sampled: of each row, 0 for no limit. seed: of 64 bits; all chance comes from it.
    """

    request_id: str
    partition_id: str
    batch_size: int
    min_size: int
    seed: int
    task: str = ""
    required_fields: tuple[str, ...] = ()
    strategy: DrawStrategy = "uniform"
    priority_tag: str = ""
    priority_exponent: float = 1.0
    where: Filter = ALL_ROWS
    max_times_sampled: int = 0


@dataclass(frozen=True, slots=True)
class GiveUpClaim(Call[Refusal]):
    """End the wait of a claim, group or draw at the caller's deadline. Answers with what to tell the caller."""

    ticket: int


@dataclass(frozen=True, slots=True)
class AbandonClaim(Call[None]):
    """Forget a waiting claim, group or draw whose caller is gone. Unknown tickets are ignored."""

    ticket: int


@dataclass(frozen=True, slots=True)
class AbandonRequest(RepeatableCall[ReleaseResult]):
    """The caller will not take the answer to a claim, whether the claim waits, was granted, or has yet to arrive. Its
    rows are released as not delivered, and the claim is refused if it still arrives.
    """

    request_id: str
    claim_request_id: str


@dataclass(frozen=True, slots=True)
class ReleaseClaim(RepeatableCall[ReleaseResult]):
    """Release the rows of a claim, to the head of the queue, at once or after delay_s seconds. With a reason the
    delivery counts as failed.
    """

    request_id: str
    claim_id: str
    delay_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AdoptClaim(RepeatableCall[bool]):
    """Move a claim to another session, which then holds it alone. Answers with True."""

    request_id: str
    claim_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class ResetTask(RepeatableCall[ResetResult]):
    """Return rows (sample_ids None: all) to a task as if it had never taken them."""

    request_id: str
    partition_id: str
    task: str
    sample_ids: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class ReserveGroup(RepeatableCall[Reserved | Waiting]):
    """Create a group and its known rows, hidden until FinishGroup, or wait for room. session_id: of its holder.

    deadline_s: 0 for none. Then it is finished with the rows that have complete_fields (none: any value of their own),
    if these are at least min_rows (0: none are enough), else rolled back. max_regenerations: None for no bound.
    """

    request_id: str
    partition_id: str
    group_id: str
    sample_ids: Sequence[str]
    session_id: str = ""
    weight_version: int | None = None
    deadline_s: float = 0.0
    min_rows: int = 0
    complete_fields: Sequence[str] = ()
    max_regenerations: int | None = None


@dataclass(frozen=True, slots=True)
class FinishGroup(RepeatableCall[GroupFinished]):
    """Make the rows of a group visible, all at once. digest: as of PutSamples."""

    request_id: str
    reservation_id: str
    weight_version: int | None = None
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class AbortGroup(RepeatableCall[GroupAborted]):
    """Remove the rows of a reserved group. sample_ids: only these, which failed; the others stay reserved.

    reserve_request_id: instead of a reservation, the call that asked for one and whose answer the caller will not take,
    whether it waits, was granted, or has yet to arrive, when it is refused.
    """

    request_id: str
    reservation_id: str
    reason: str = ""
    sample_ids: Sequence[str] = ()
    reserve_request_id: str = ""


# -- sessions and time -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenSession(Call[SessionInfo]):
    """Open a session (empty session_id), or resume one, whose grace and owner stay. grace_s: seconds; None for the
    default. owner: the name of the caller; empty where callers have none.
    """

    session_id: str
    client_name: str
    grace_s: float | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat(Call[bool]):
    """Extend a session by its grace. Answers with False if the session is not open."""

    session_id: str


@dataclass(frozen=True, slots=True)
class CloseSession(Call[None]):
    """End a session at its client's request: what it holds is released as not used. Unknown sessions are ignored."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Advance(Call[None]):
    """End what is due by now. stalled_s: seconds in which no heartbeat could be read, by which all graces grow."""

    stalled_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MergeFreeRanges(Call[None]):
    """Do a third of a millisecond of the work that frees have deferred; see `DataPlane.has_deferred_frees`."""


@dataclass(frozen=True, slots=True)
class Drain(Call[None]):
    """End all waits. From now on a call that would have to wait is refused."""

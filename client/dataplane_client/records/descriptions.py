"""Descriptions of a server, its partitions and their samples.

The command line imports this module, so it must load quickly: no numpy, and msgpack only when there are tags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Literal

from dataplane_client._common.displays import html_table, short_list
from dataplane_client.records.flow import FlowPolicy
from dataplane_client.records.mapping import compiled_later, mapper
from dataplane_client.records.meta import Tag
from dataplane_client.records.recent import RecentFlow, RecentTask
from dataplane_client.records.tasks import TaskPolicy
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.element_numbers import DTYPES_BY_NUMBER, KINDS_BY_NUMBER
from rl_dataplane.v1.element_types import Kind

Outcome = Literal["created", "unchanged", "extended", "replaced"]

_OUTCOMES: dict[int, Outcome] = {
    pb.REGISTRATION_OUTCOME_CREATED: "created",
    pb.REGISTRATION_OUTCOME_UNCHANGED: "unchanged",
    pb.REGISTRATION_OUTCOME_EXTENDED: "extended",
    pb.REGISTRATION_OUTCOME_REPLACED: "replaced",
}


@dataclass(frozen=True)
class FieldDescription:
    """One field of a partition. kind, dtype and row_shape are None, "" and () until the first put, and those of the
    last values if no row holds any. row_shape is the shape of a row (dense) or of one entry of a row (jagged). rows and
    size_bytes count the resident rows that hold the field.
    """

    name: str
    kind: Kind | None
    dtype: str
    row_shape: tuple[int, ...]
    per_token: bool
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class TaskStatus:
    """One task of a partition: resident rows by state, rows consumed since registration, claims that wait.

    delivered_rows_total: deliveries of rows, ever; always claimed_rows plus the sum of ended_deliveries.
    ended_deliveries: deliveries that have ended, by how: "committed", "released", "expired" (with the session),
        "reset", "cleared" (while claimed), "abandoned" (the caller did not take the answer).
    state_seconds: seconds that the task has been in each state: "serving" (rows are claimed, no claim waits), "waiting"
        (claims wait; `client.why()` says for what), "waiting_for_consumers" (rows are ready, no claim holds or awaits
        any), "idle".
    ready_rows: rows that a claim could get now, for the fields that the last claim required; None before the first
        claim.
    oldest_untaken_age_s: age in seconds of the oldest untaken row (exact to a second or a hundredth); None when no row
        is untaken.
    weight_version_lag: the partition's weight version less the oldest of its untaken rows; None while rows name none.
    longest_wait_s: seconds that the oldest waiting claim has waited; None when none waits.
    claims_total: claims granted.
    stale_rows: untaken rows that the task does not get: staler than its policy allows, or of an unknown version.
    excluded_rows: others that it does not get: they do not fit its policy's filter, and lack no tag that this names.
    policy: as set by set_policies.
    newest_step: the greatest step of claim_shard that has its rows; None if the server remembers none.
    next_step: the step with which a trainer that starts again goes on: the first that the server remembers and of which
        a shard is not committed, else the one after the newest; 0 if it remembers none.
    recent: counts of the last minute; None where `PartitionDescription.recent` is.
    """

    task: str
    untaken_rows: int
    claimed_rows: int
    consumed_rows: int
    consumed_rows_total: int
    waiting_claims: int
    delayed_rows: int
    dead_rows: int
    delivered_rows_total: int
    ended_deliveries: Mapping[str, int]
    state_seconds: Mapping[str, float] = field(compare=False)
    ready_rows: int | None = field(default=None, compare=False)
    oldest_untaken_age_s: float | None = field(default=None, compare=False)
    weight_version_lag: int | None = None
    longest_wait_s: float | None = field(default=None, compare=False)
    claims_total: int = 0
    stale_rows: int = 0
    policy: TaskPolicy = field(default_factory=TaskPolicy)
    excluded_rows: int = 0
    newest_step: int | None = None
    next_step: int = 0
    recent: RecentTask | None = field(default=None, compare=False)


@dataclass(frozen=True, repr=False)
class PartitionDescription:
    """A partition: its definition and its contents. rows_put_total is always rows_cleared_total + rows.

    max_deliveries: how often a row is delivered to a task before it becomes a dead letter; 0 for no limit.
    removed_rows: removed rows by reason: "consumed" (cleared after every task had consumed them), "cleared" (before
        that), "rolled_back" (before their group was finished), "retired" (by set_weight_version), "stale" or
        "filtered" (dropped by the policy of a task), "evicted" (for new rows), "lost" (with a node of a cluster),
        "failed" (rollouts that failed, or were not complete at the deadline of their group).
    open_groups: groups that are reserved and not finished.
    oldest_row_age_s: age in seconds of the oldest resident row (exact to a second or a hundredth); None when there is
        none.
    newest_weight_version: the greatest that rows (tag "weight_version") or groups have named; None while none has.
    weight_version: the version against which staleness is measured; None while none is known.
    written_bytes_total, read_bytes_total, read_rows_total: values in applied puts and commits; values and rows read.
    deduplicated_bytes_total: values put with once that were not stored, because equal ones were there.
    open: a put of a field that is not declared declares it. clear_when_consumed: rows are removed as soon as every task
        has consumed them. dtypes: element types as declared. digests: values are hashed by who puts and checked by who
        reads them. closed: close_partition announced the end of data.
    flow: as set by set_policies. waiting_calls: puts and groups that wait for room, and draws that wait for new rows.
    waits_because: why the first of them waits, and what would let it go on; empty when none waits.
    recent: counts of the last minute; None if there are more than a thousand partitions and tasks, and in answers of
        verbs that change a partition.
    outcome: what register_partition did: "created", "unchanged" (the partition had all that was declared), "extended"
        or "replaced". None in other descriptions.
    """

    partition_id: str
    fields: tuple[FieldDescription, ...]
    tasks: tuple[TaskStatus, ...]
    num_samples: int
    grpo_group_size: int | None
    enums: dict[str, tuple[str, ...]]
    rows: int
    size_bytes: int
    rows_put_total: int
    rows_cleared_total: int
    max_deliveries: int
    removed_rows: Mapping[str, int]
    open_groups: int
    oldest_row_age_s: float | None = field(default=None, compare=False)
    newest_weight_version: int | None = None
    written_bytes_total: int = 0
    read_bytes_total: int = 0
    read_rows_total: int = 0
    deduplicated_bytes_total: int = 0
    open: bool = False
    clear_when_consumed: bool = False
    closed: bool = False
    weight_version: int | None = None
    dtypes: dict[str, str] = field(default_factory=dict)
    digests: bool = False
    flow: FlowPolicy = field(default_factory=FlowPolicy)
    waiting_calls: int = 0
    waits_because: str = field(default="", compare=False)
    recent: RecentFlow | None = field(default=None, compare=False)
    outcome: Outcome | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        fields, tasks = (short_list([part.name for part in self.fields], 24), short_list(self.task_names, 16))
        partition = short_list([self.partition_id], 20)
        return f"<PartitionDescription {partition} {self.rows} rows of {fields} for {tasks}>"

    def _repr_html_(self) -> str:
        """Tables of its fields and tasks, for notebooks."""
        fields = [
            (part.name, part.kind or "", part.dtype, list(part.row_shape), part.rows, part.size_bytes)
            for part in self.fields
        ]
        tasks = [
            (each.task, each.untaken_rows, each.claimed_rows, each.consumed_rows, each.waiting_claims)
            for each in self.tasks
        ]
        return html_table(
            f"{self.partition_id}: {self.rows} rows, {self.size_bytes} bytes",
            ("field", "kind", "dtype", "shape of a row", "rows", "bytes"),
            fields,
        ) + html_table("", ("task", "untaken", "claimed", "consumed", "waiting claims"), tasks)

    @property
    def task_names(self) -> list[str]:
        return [status.task for status in self.tasks]

    def task(self, name: str) -> TaskStatus:
        """Raises KeyError for a task that is not registered."""
        for status in self.tasks:
            if status.task == name:
                return status
        raise KeyError(name)


@dataclass(frozen=True)
class SnapshotDescription:
    """A snapshot of a server. taken: the moment that it is of, UTC. values_bytes: of memory that was in use."""

    name: str
    taken: datetime
    rows: int
    values_bytes: int


@dataclass(frozen=True)
class MemoryHolder:
    """What a client holds of the server's memory, in bytes. lent: to its puts under way. leased: what it reads or views
    now. owed: what has been cleared or replaced of that, and returns only when the client lets go of it.
    """

    client_name: str
    lent_bytes: int
    leased_bytes: int
    owed_bytes: int


@dataclass(frozen=True)
class NodeDescription:
    """A node of a cluster. number: counts the nodes that ever came. name: its id in Ray; name and host are empty until
    it has registered. up: it answers; if it does not for long, it is lost, with its rows. memory_used_bytes: of values.
    clients: attached. fetched_bytes: that it got from other nodes; cache_hit_bytes: of other nodes, read again without
    that; cache_used_bytes: of other nodes, kept now. written_bytes, local_read_bytes: that its clients have put,
    and that they have read from its own memory. mirrors: the numbers of the nodes that have a copy of all its bytes,
    too. ended: it is gone, and its rows are read from a mirror. Some figures are up to a second old.
    """

    number: int
    name: str
    host: str
    up: bool
    memory_used_bytes: int
    clients: int
    fetched_bytes: int
    cache_hit_bytes: int
    cache_used_bytes: int
    written_bytes: int
    local_read_bytes: int
    mirrors: tuple[int, ...] = ()
    ended: bool = False


@dataclass(frozen=True, repr=False)
class ServerStatus:
    """The whole server. memory_budget_bytes: of all nodes of a cluster together. memory_used_bytes: values of resident
    rows, puts under way, cleared rows still being sent.

    largest_free_bytes: the longest free run of memory. longest_put_wait_s: seconds that the oldest put waiting for
        space has waited; None when none waits. draining: the server is shutting down. durability: what rows survive:
        "memory", "process" or "disk"; "" if not reported. held_bytes: what no clear frees: puts under way,
        and cleared or replaced rows that clients still read. holders: the ten clients that hold most, then the others.
        nodes: of a cluster, else none. unhealthy: why the server is not healthy, a sentence each; none if it is.
    """

    version: str
    memory_budget_bytes: int
    memory_used_bytes: int
    rows: int
    uptime_s: float
    waiting_claims: int
    waiting_puts: int
    sessions: int
    largest_free_bytes: int = 0
    longest_put_wait_s: float | None = field(default=None, compare=False)
    draining: bool = False
    max_rows: int = 0
    durability: str = ""
    held_bytes: int = 0
    holders: tuple[MemoryHolder, ...] = ()
    nodes: tuple[NodeDescription, ...] = ()
    unhealthy: tuple[str, ...] = ()

    def __repr__(self) -> str:
        used, budget = self.memory_used_bytes / (1 << 20), self.memory_budget_bytes / (1 << 20)
        state = "draining" if self.draining else f"up {self.uptime_s:.0f} s"
        waiting = f"{self.waiting_claims} claims and {self.waiting_puts} puts wait"
        return f"<ServerStatus {self.version} {state} {self.rows} rows, {used:.1f} of {budget:.1f} MiB used, {waiting}>"


@dataclass(frozen=True)
class DeadLetter:
    """A row that a task no longer gets. reason: of the release that ended its last delivery, or "expired"."""

    sample_id: str
    deliveries: int
    reason: str


@dataclass(frozen=True)
class SampleTask:
    """The state of a row for a task: "untaken", "claimed", "consumed", "delayed" or "dead". claim_id: the claim that
    holds it; empty when none does. step, dp_rank: of the shard that has it, which claim_shard gives to that rank; None
        unless the server remembers such a step.
    """

    task: str
    state: str
    deliveries: int
    claim_id: str
    step: int | None = None
    dp_rank: int | None = None


@dataclass(frozen=True)
class SampleEvent:
    """An event in the history of a sample id, age_s seconds ago.

    what: "put", "wrote_back", "appended", "reserved", "ready", "claimed", "committed", "released", "expired",
        "adopted", "reset", "fenced" (a call in the name of an ended claim was refused), "cleared", "rolled_back",
        "failed", "lost" (with a node) or "dead_letter".
    who: the client. Attributes that do not apply are empty.
    """

    age_s: float
    what: str
    who: str
    task: str
    claim_id: str
    fields: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class SampleDescription:
    """One sample id: the contents and states of its row, if there is one (resident), and the history of the id.

    generation: distinguishes the row from earlier ones of its id; None when there is no row.
    sequence_length: in tokens; None when not known.
    group_id: None when it belongs to no group. hidden: the group is still reserved, so claims do not see the row.
    events: oldest first, as far as the server keeps them.
    digests: by field, the XXH3-64 of the value as its producer hashed it, in hexadecimal; none in a partition without
        digests.
    """

    resident: bool
    generation: int | None
    sequence_length: int | None
    fields: tuple[str, ...]
    tags: dict[str, Tag]
    group_id: str | None
    hidden: bool
    tasks: tuple[SampleTask, ...]
    events: tuple[SampleEvent, ...]
    digests: dict[str, str] = field(default_factory=dict)


@compiled_later
def partition_description() -> Callable[[pb.Partition], PartitionDescription]:
    mapper().reader(
        FieldDescription,
        pb.FieldDescription,
        kind=lambda field: KINDS_BY_NUMBER.get(field.kind),
        dtype=lambda field: DTYPES_BY_NUMBER.get(field.data_type, ""),
        leave=("data_type",),
    )
    return mapper().reader(PartitionDescription, pb.Partition, leave=("outcome",))


def registered_description(message: pb.RegisterPartitionResponse) -> PartitionDescription:
    return replace(partition_description(message.partition), outcome=_OUTCOMES.get(message.outcome))


@compiled_later
def server_status() -> Callable[[pb.GetServerStatusResponse], ServerStatus]:
    return mapper().reader(
        ServerStatus, pb.GetServerStatusResponse, leave=("caller_proof", "direct_port", "shared_memory")
    )


def snapshot_description(message: pb.Snapshot) -> SnapshotDescription:
    """The description of a message."""
    taken = message.taken.ToDatetime(timezone.utc)
    return SnapshotDescription(message.name, taken, message.rows, message.values_bytes)


def dead_letter(message: pb.DeadLetter) -> DeadLetter:
    return DeadLetter(message.sample_id, message.deliveries, message.reason)


@compiled_later
def sample_description() -> Callable[[pb.GetSampleResponse], SampleDescription]:
    return mapper().reader(
        SampleDescription,
        pb.GetSampleResponse,
        generation=lambda row: row.generation if row.resident else None,
        sequence_length=lambda row: row.sequence_length if row.resident and row.sequence_length >= 0 else None,
        group_id=lambda row: row.group_id or None,
        digests=lambda row: {name: f"{digest:016x}" for name, digest in zip(row.fields, row.digests, strict=False)},
    )

"""Lists of samples, claims and sessions, and explanations of waits.

The command line imports this module, so it must load quickly: no numpy, and msgpack only when there are tags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataplane_client.records.mapping import compiled_later, mapper, unpacked_tags
from dataplane_client.records.meta import KVBatchMeta
from rl_dataplane.v1 import data_plane_pb2 as pb

_STATES = ("untaken", "claimed", "consumed", "delayed", "dead")


@dataclass(frozen=True)
class SampleGroup:
    """A group of rows. rows: how many it has. start_weight_version, end_weight_version: as its producer named them when
    it reserved and committed it. reserved: not committed yet, so claims do not see its rows; client: who holds it.
    """

    group_id: str
    rows: int
    start_weight_version: int | None
    end_weight_version: int | None
    reserved: bool
    client: str


@dataclass(frozen=True)
class SamplePage:
    """Rows of a partition in order of arrival. meta: with their lengths (None if one is unknown), tags and generations,
    to read or clear them. states: of each row for the task, or None if the call named no task. next_page: where the
    next page begins, or None if there is none. groups: of each row, or None outside a group.
    """

    meta: KVBatchMeta
    states: list[str] | None
    next_page: int | None
    groups: list[SampleGroup | None]


@dataclass(frozen=True)
class ClaimDescription:
    """An open claim: rows held for a task for age_s seconds. sessions, clients: ids of the sessions that hold it, and
    the names of their clients. step, dp_rank: of a shard, else None.
    """

    claim_id: str
    partition_id: str
    task_name: str
    rows: int
    age_s: float
    sessions: tuple[str, ...]
    clients: tuple[str, ...]
    step: int | None
    dp_rank: int | None


@dataclass(frozen=True)
class WaitingClaim:
    """A claim that has waited for age_s seconds. min_size, ready: rows (groups with whole_groups) wanted at least, and
    rows ready. lacking_rows: untaken rows that lack a required field, by field. client: empty without a session.
    """

    partition_id: str
    task_name: str
    required_fields: tuple[str, ...]
    min_size: int
    ready: int
    lacking_rows: dict[str, int]
    age_s: float
    client: str


@dataclass(frozen=True)
class ClaimList:
    """open: who holds rows; waiting: who waits for rows. Each the oldest first, at most 10,000."""

    open: list[ClaimDescription]
    waiting: list[WaitingClaim]


@dataclass(frozen=True)
class ReservedGroup:
    """A group that is not committed, reserved age_s seconds ago. client: empty if none holds it. incomplete_rows: those
    that would be late at its deadline; incomplete_sample_ids: the first 16 of them. failed_rows: rows that `fail`
    removed. deadline_in_s: None without a deadline. min_rows, start_weight_version: as reserved.
    """

    group_id: str
    client: str
    age_s: float
    rows: int
    incomplete_rows: int
    incomplete_sample_ids: tuple[str, ...]
    failed_rows: int
    deadline_in_s: float | None
    min_rows: int
    start_weight_version: int | None


@dataclass(frozen=True)
class GivenUpGroup:
    """A group that was removed more often than its max_regenerations allows. reason: why it was removed last."""

    group_id: str
    attempts: int
    reason: str


@dataclass(frozen=True)
class GroupList:
    """groups: those that are reserved, the oldest first, at most 1,000. reserved: how many there are. given_up: groups
    that may not be reserved again, the latest last.
    """

    groups: list[ReservedGroup]
    reserved: int
    given_up: list[GivenUpGroup]


@dataclass(frozen=True)
class WaitCause:
    """One cause of a wait. cause: its stable code, see docs/why.md; newer servers may know more. text: the evidence.
    next_step: what to do. numbers: those of the text, by name. field: which one rows lack, else "".
    """

    cause: str
    text: str
    next_step: str
    numbers: dict[str, float]
    field: str


@dataclass(frozen=True)
class ExplainedWait:
    """Calls that wait alike, and why. waiting: "claim", "put", "commit", "group" or "draw"; "" if nothing does, for a
    task that takes no rows and for a server that drains. client: whose call has waited for longest, for age_s seconds
    (None: not known). calls: how many wait. wanted: rows or groups, or bytes of memory. summary: a sentence. causes: at
    least one, the main one first. behind: the place in the list, from 0, of the wait that has to end first; None for a
    root.
    """

    partition_id: str
    task_name: str
    waiting: str
    client: str
    calls: int
    age_s: float | None
    wanted: int
    summary: str
    causes: list[WaitCause]
    behind: int | None = None


@dataclass(frozen=True)
class Explanation:
    """waits: those that have lasted longest first, each followed by those behind it; none if nothing waits. unexamined:
    how many more there are.
    """

    waits: list[ExplainedWait]
    unexamined: int


@dataclass(frozen=True)
class SessionDescription:
    """An open session: it expires after grace_s seconds without a heartbeat; silent_s have passed since the last one.
    claims, rows, groups: claims, rows in these claims, and reserved groups that it holds.
    """

    session_id: str
    client: str
    grace_s: float
    silent_s: float
    claims: int
    rows: int
    groups: int


@compiled_later
def _group() -> Callable[[pb.ListedGroup], SampleGroup]:
    return mapper().reader(SampleGroup, pb.ListedGroup, client="client_name")


def known_lengths(message: pb.ListSamplesResponse) -> list[int | None]:
    from dataplane_client._common.arrays import int64s

    # None where they are unknown; the meta of a page has the lengths of all rows, or none.
    return [length if length >= 0 else None for length in int64s(message.sequence_lengths).tolist()]


def sample_page(message: pb.ListSamplesResponse, partition_id: str, task_name: str | None) -> SamplePage:
    from dataplane_client._common.arrays import generations_of, int64s

    lengths = int64s(message.sequence_lengths).tolist()
    meta = KVBatchMeta(
        partition_id=partition_id,
        task_name=task_name,
        sample_ids=list(message.sample_ids),
        sequence_lengths=lengths if all(length >= 0 for length in lengths) else None,
        tags=[*map(unpacked_tags, message.row_tags)],
        generations=generations_of(message.generations, len(message.sample_ids)),
    )
    states = None if task_name is None else [_STATES[number] for number in message.states]
    groups = {group.group_id: group for group in map(_group, message.groups)}
    group_ids = message.group_ids or [""] * meta.size
    return SamplePage(meta, states, message.next_page_token or None, [*map(groups.get, group_ids)])


@compiled_later
def claim_list() -> Callable[[pb.ListClaimsResponse], ClaimList]:
    mapper().reader(ClaimDescription, pb.OpenClaim, task_name="task", sessions="session_ids", clients="client_names")
    mapper().reader(WaitingClaim, pb.WaitingClaim, task_name="task", client="client_name")
    return mapper().reader(ClaimList, pb.ListClaimsResponse, open="claims")


@compiled_later
def group_list() -> Callable[[pb.ListGroupsResponse], GroupList]:
    mapper().reader(ReservedGroup, pb.ReservedGroup)
    mapper().reader(GivenUpGroup, pb.GivenUpGroup)
    return mapper().reader(GroupList, pb.ListGroupsResponse)


@compiled_later
def explanation() -> Callable[[pb.ExplainWaitsResponse], Explanation]:
    mapper().reader(ExplainedWait, pb.ExplainedWait, task_name="task", client="client_name")
    return mapper().reader(Explanation, pb.ExplainWaitsResponse)


@compiled_later
def _session() -> Callable[[pb.OpenSessionStatus], SessionDescription]:
    names = {"client": "client_name", "silent_s": "silence", "rows": "claimed_rows", "groups": "open_groups"}
    return mapper().reader(SessionDescription, pb.OpenSessionStatus, **names)


def session_list(message: pb.ListSessionsResponse) -> list[SessionDescription]:
    return [*map(_session, message.sessions)]

"""Lists of rows, claims and sessions, for queries. Nothing here changes anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np

from dataplane_server.core.calls.filters import Filter
from dataplane_server.core.calls.listings import (
    ClaimInfo,
    GivenUpGroup,
    GroupInfo,
    GroupList,
    OpenSessionInfo,
    ReservedGroup,
    SamplePage,
    WaitInfo,
)
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.rows.group_table import Group
from dataplane_server.core.rows.matching import check_sees_tags, fitting
from dataplane_server.core.state.claim_table import ClaimTable
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State
from dataplane_server.core.tasks.task_states import STATE_NAMES, UNTAKEN
from dataplane_server.core.verbs.claim_queue import ClaimQueue, QueuedClaim

MOST_CLAIMS = 10_000
_COMPARED_ROWS = 1 << 16
"""Rows of one page that a filter looks at."""

_MOST_GROUPS, _NAMED_ROWS = 1000, 16
_EXPLAINED_WAITS = 16
"""Field sets whose missing rows are counted; each takes a scan of the rows."""


# -- rows --------------------------------------------------------------------------------------------------------------


def list_samples(
    state: State,
    partition: Partition,
    task: str,
    states: Collection[str],
    where: Filter,
    page_size: int,
    page: int,
    now: float,
) -> SamplePage:
    """Rows from generation `page` on, in order of arrival. states: names; empty for all. where: what they fit at now.
    Costs O(rows).
    """
    rows = partition.rows
    chosen = rows["alive"] & (rows["generation"] >= page)
    if states:
        chosen &= np.isin(partition.task(task).states, _numbers(partition, task, states))
    most = _COMPARED_ROWS if where else page_size
    oldest = _oldest(partition, np.flatnonzero(chosen), most + 1)
    fit = oldest
    if where:
        check_sees_tags(rows, partition.definition.fields, where)
        fit = oldest[:most]
        fit = fit[fitting(rows, where, fit, now, keep=False)]
    listed, more = fit[:page_size], fit[page_size:] if len(fit) > page_size else oldest[most:]
    return SamplePage(
        tuple(rows.ids(listed)),
        rows.generations(listed),
        rows["sequence_length"][listed].astype(np.int64),
        rows.tags_of(listed),
        partition.task(task).states[listed] if task else None,
        int(rows["generation"][more[0]]) if len(more) else 0,
        *_groups(state, partition, listed),
    )


def _groups(state: State, partition: Partition, slots: Slots) -> tuple[tuple[str, ...], tuple[GroupInfo, ...]]:
    """The id of each row's group, and the groups, each once."""
    ids = tuple(map(partition.groups.id_of, slots.tolist())) if len(partition.groups) else ()
    found = [partition.groups.find(group_id) for group_id in dict.fromkeys(ids) if group_id]
    groups = tuple(
        GroupInfo(
            group.group_id,
            group.size,
            group.start_weight_version,
            group.end_weight_version,
            bool(group.reservation_id),
            state.sessions.name(group.session_id),
        )
        for group in found
        if group is not None
    )
    return (ids if groups else ()), groups


def list_groups(state: State, partition: Partition, now: float) -> GroupList:
    """Reserved groups, the oldest first, and those that were given up."""
    reserved = partition.groups.reserved
    first = [group for _, group in zip(range(_MOST_GROUPS), reserved.values(), strict=False)]
    tried = partition.groups.attempts.items()
    given_up = (GivenUpGroup(name, one.number, one.reason) for name, one in tried if one.number > one.most)
    return GroupList(tuple(_reserved(state, partition, group, now) for group in first), len(reserved), tuple(given_up))


def _reserved(state: State, partition: Partition, group: Group, now: float) -> ReservedGroup:
    members = partition.groups.members(group.number)
    incomplete = members[~partition.complete(group)]
    return ReservedGroup(
        group.group_id,
        state.sessions.name(group.session_id),
        max(now - group.since, 0.0),
        group.size,
        len(incomplete),
        tuple(partition.rows.ids(incomplete[:_NAMED_ROWS])),
        group.failed,
        None if group.deadline is None else group.deadline - now,
        group.terms.min_rows,
        group.start_weight_version,
    )


def _numbers(partition: Partition, task: str, states: Collection[str]) -> list[int]:
    unknown = set(states) - set(STATE_NAMES)
    if unknown:
        message = (
            f"partition {partition.partition_id!r}, task {task!r}: {min(unknown)!r} is not a state of a row; "
            f"it must be one of {', '.join(STATE_NAMES)}"
        )
        raise Refusal(Reason.INVALID_REQUEST, message, partition_id=partition.partition_id, task=task)
    return [STATE_NAMES.index(state) for state in states]


def _oldest(partition: Partition, slots: Slots, count: int) -> Slots:
    """Up to `count` of the rows, those that arrived first, in order of arrival."""
    generations = partition.rows.generations(slots)
    if len(slots) > count:
        first = np.argpartition(generations, count - 1)[:count]
        slots, generations = slots[first], generations[first]
    return slots[np.argsort(generations)]


# -- claims ------------------------------------------------------------------------------------------------------------


def list_claims(table: ClaimTable, state: State, partition_id: str, task: str, now: float) -> list[ClaimInfo]:
    """Open claims, in the order in which they were granted. partition_id, task: of which; empty for all."""
    chosen = (
        claim for claim in table if partition_id in ("", claim.partition.partition_id) and task in ("", claim.task)
    )
    return [
        ClaimInfo(
            claim.claim_id,
            claim.partition.partition_id,
            claim.task,
            len(claim.left()),
            max(now - claim.since, 0.0),
            tuple(claim.sessions),
            tuple(map(state.sessions.name, claim.sessions)),
            *(claim.shard or ()),
        )
        for _, claim in zip(range(MOST_CLAIMS), chosen, strict=False)
    ]


def list_waits(queue: ClaimQueue, state: State, partition_id: str, task: str, now: float) -> list[WaitInfo]:
    """Queued claims, the longest queued first."""
    explained: dict[tuple[str, str, tuple[str, ...]], dict[str, int]] = {}
    return [
        _wait(queued, state, explained, now)
        for _, queued in zip(range(MOST_CLAIMS), queue.queued_on(partition_id, task), strict=False)
    ]


def _wait(
    queued: QueuedClaim, state: State, explained: dict[tuple[str, str, tuple[str, ...]], dict[str, int]], now: float
) -> WaitInfo:
    wanted = queued.wanted
    key = (wanted.partition_id, wanted.task, wanted.required_fields)
    if key not in explained and len(explained) < _EXPLAINED_WAITS:
        explained[key] = _lacking(state.partition(wanted.partition_id), wanted.task, wanted.required_fields)
    return WaitInfo(
        *key,
        wanted.min_size,
        max(now - queued.view.waiters[queued.number].since, 0.0),
        state.sessions.name(wanted.session_id),
        queued.view.ready,
        explained.get(key, {}),
    )


def _lacking(partition: Partition, task: str, fields: tuple[str, ...]) -> dict[str, int]:
    """How many untaken rows of a task lack each of the fields; only fields that rows lack. Costs O(rows)."""
    rows = partition.rows
    produced = rows["produced"][rows["alive"] & (partition.task(task).states == UNTAKEN)]
    lacking = {name: int(np.count_nonzero((produced & partition.field(name).bit) == 0)) for name in fields}
    return {name: count for name, count in lacking.items() if count}


# -- sessions ----------------------------------------------------------------------------------------------------------


def list_sessions(table: ClaimTable, state: State, now: float) -> list[OpenSessionInfo]:
    """Open sessions, in the order in which they were opened."""
    groups = Counter(
        group.session_id for partition in state.partitions.values() for group in partition.groups.reserved.values()
    )
    rows = Counter[str]()
    for claim in table:
        left = len(claim.left())
        rows.update(dict.fromkeys(claim.sessions, left))
    return [
        OpenSessionInfo(
            session.session_id,
            session.client_name,
            session.grace_s,
            max(session.silent_s(now), 0.0),
            len(session.claims),
            rows[session.session_id],
            groups[session.session_id],
        )
        for session in state.sessions
    ]

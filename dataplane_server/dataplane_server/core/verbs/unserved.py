"""Why a claim is not served: which rows it lacks at its deadline and who holds the others, or that no row will come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import ClaimCall, ClaimShard, unit_of
from dataplane_server.core.state.claim_table import ClaimTable, OpenClaim
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import UNTAKEN

_NAMED_HOLDERS = 3


@dataclass(frozen=True, slots=True)
class Untaken:
    """The untaken rows of a task: how many lack each of some fields (only fields that rows lack), and how many are
    hidden by their group.
    """

    rows: int
    lacking: dict[str, int]
    hidden: int


def untaken_rows(partition: Partition, task: str, fields: tuple[str, ...]) -> Untaken:
    """Costs O(rows)."""
    untaken = partition.rows["alive"] & (partition.task(task).states == UNTAKEN)
    produced = partition.rows["produced"][untaken]
    lacking = {name: int(np.count_nonzero((produced & partition.field(name).bit) == 0)) for name in fields}
    hidden = int(np.count_nonzero(partition.rows["hidden"][untaken]))
    return Untaken(len(produced), {name: count for name, count in lacking.items() if count}, hidden)


def claim_timeout(state: State, table: ClaimTable, call: ClaimCall, now: float) -> Refusal:
    """Refusal CLAIM_TIMEOUT for a claim whose deadline has passed."""
    partition = state.partition(call.partition_id)
    task = partition.task(call.task)
    untaken = untaken_rows(partition, call.task, call.required_fields)
    reasons = [f"{count} of them lack field {name!r}" for name, count in untaken.lacking.items()]
    if untaken.hidden:
        reasons.append(f"{untaken.hidden} of them belong to groups that are still reserved")
    if call.whole_groups and (broken := task.untaken_in_broken_groups()):
        reasons.append(f"{broken} of them belong to groups of which other rows are taken, so they are no whole groups")
    if stale := task.stale_rows():
        bound = f"staler than max_staleness {task.policy.bound} (the weight version is {partition.rows.weight_version})"
        reasons.append(f"{stale} of them are {bound}, or of an unknown version")
    if task.policy.where:
        reasons += _excluded(partition, task)
    if call.where:
        reasons.append("and the claim has a filter (where)")
    if task.delayed:
        reasons.append(f"{task.delayed} more are delayed by a release")
    others = task.waiting()
    message = (
        f"partition {call.partition_id!r}, task {call.task!r}: {call.min_size} ready "
        f"{unit_of(call)} wanted; "
        f"{untaken.rows} of {len(partition.rows)} resident rows are untaken"
        + "".join(f", {reason}" for reason in reasons)
        + _held(state, table.open_on(partition, call.task), call.session_id, now)
        + (f"; {others} other claims of the task are queued, first come first served" if others else "")
    )
    return Refusal(Reason.CLAIM_TIMEOUT, message, partition_id=call.partition_id, task=call.task)


def _excluded(partition: Partition, task: Task) -> list[str]:
    slots = np.flatnonzero(partition.rows["alive"] & (task.states == UNTAKEN))
    excluded = np.count_nonzero(task.is_excluded(slots))
    lacking = excluded - np.count_nonzero(task.is_rejected(slots))
    some = f" ({lacking} lack a tag that it names)" if lacking else ""
    return [f"{excluded} of them do not fit the filter of task {task.name!r}{some}"] if excluded else []


def end_of_data(task: Task, call: ClaimCall) -> Refusal:
    """Refusal END_OF_DATA for a claim on a closed partition, with what would get the rows that are left."""
    left, what = task.left(call.whole_groups, unit_of(call)), unit_of(call).removesuffix("s")
    count = f"{left or 'no'} {what}{' is' if left < 2 else 's are'} left"
    message = f"partition {call.partition_id!r} is closed and {count} for task {call.task!r}"
    if left:
        kind = "plain claim" if isinstance(call, ClaimShard) and left < call.dp_world else "claim"
        message += f", fewer than min_size {call.min_size}; a {kind} with min_size={left} gets {what}s that are left"
    if call.whole_groups and (broken := task.untaken_in_broken_groups()):
        message += f"; without whole_groups a claim gets the {broken} rows of groups of which other rows were taken"
    return Refusal(Reason.END_OF_DATA, message, partition_id=call.partition_id, task=call.task, left=left)


def _held(state: State, claims: list[OpenClaim], session_id: str, now: float) -> str:
    """The open claims of the task, those with most rows first."""
    held = sorted(((len(claim.left()), claim) for claim in claims), key=lambda pair: -pair[0])
    parts = [
        f"; {rows} rows are held by {_holder(state, claim, session_id)} (claim {claim.claim_id!r}, for "
        f"{max(now - claim.since, 0.0):.0f} s)"
        for rows, claim in held[:_NAMED_HOLDERS]
        if rows
    ]
    more = sum(rows for rows, _ in held[_NAMED_HOLDERS:])
    return "".join(parts) + (f"; {more} rows by {len(held) - _NAMED_HOLDERS} other claims" if more else "")


def _holder(state: State, claim: OpenClaim, session_id: str) -> str:
    if session_id and session_id in claim.sessions:
        return "this client"
    if not claim.sessions:
        return "a caller without a session"
    return "client " + " and ".join(repr(state.sessions.name(held_by)) for held_by in claim.sessions)

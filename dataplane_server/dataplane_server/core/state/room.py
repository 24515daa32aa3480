"""Whether a partition has room for new rows, and if not, why, in words that say what would make room.

A task with rows_per_version paces its producers: the rows before it, and those that it has taken since the weight
version moved, are at most (max_staleness + 1) * rows_per_version. So a row is trained before it is too stale, if the
trainer takes rows in the order in which they came. Rows that were claimed when the version moved count for the version
before, unless they come back.
"""

from __future__ import annotations

import numpy as np

from dataplane_server.core.calls.causes import Finding, counted
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import DrawSamples
from dataplane_server.core.calls.values import Slots
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.tasks.eligibility import too_old
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import CONSUMED, DEAD, UNTAKEN

_NONE: Slots = np.empty(0, np.int64)


def why_never(partition: Partition, rows: int, size_bytes: int) -> Refusal | None:
    """The refusal of new rows that can never come, however long they wait; None if they may."""
    policy = partition.entrance.policy
    bounds = [(rows, policy.max_rows, "rows", "max_rows"), (size_bytes, policy.max_bytes, "bytes", "max_bytes")]
    if policy.band is not None:
        width = policy.band.most - policy.band.least
        bounds.append((rows, int(width / policy.band.samples_per_insert), "rows", "the band of draws"))
    bounds += [(rows, most, "rows", f"task {task.name!r}") for task, most in _paces(partition)]
    for wanted, most, unit, bound in bounds:
        if most is not None and wanted > most:
            message = (
                f"partition {partition.partition_id!r}: {wanted} new {unit} in one call can never come, since {bound} "
                f"allows {most} at a time; put fewer, or raise it with set_policies"
            )
            return Refusal(Reason.PUT_TOO_LARGE, message, partition_id=partition.partition_id)
    if partition.rows.closed:
        message = f"partition {partition.partition_id!r} was closed while the call waited for room"
        return Refusal(Reason.PARTITION_CLOSED, message, partition_id=partition.partition_id)
    return None


def paced(partition: Partition, rows: int, again: Slots = _NONE) -> Finding | None:
    """Why new rows have to wait for a trainer or for draws; None if they have not. again: rows that leave for them, and
    become new ones as well.
    """
    for task, most in _paces(partition):
        untaken = again[task.states[again] == UNTAKEN]  # their places before the task are those of the new ones
        wanted = rows + len(again) - len(untaken) + (_lost(partition, task, untaken) if len(untaken) else 0)
        before = _before(partition, task, most - wanted)
        if before + wanted > most:
            policy, taken = task.policy, task.taken_in_version
            text = (
                f"task {task.name!r} has {counted(before, 'rows')} before it or taken since the weight version moved, "
                f"of at most (max_staleness {policy.max_staleness} + 1) * rows_per_version {policy.rows_per_version} = "
                f"{most}; more may come when the trainer sets the next weight version"
            )
            numbers = {"before_or_taken": before, "taken": taken, "most": most}
            untaken_alone = before - taken + wanted <= most
            return Finding("version_not_advanced" if untaken_alone else "weight_version_pace", text, numbers)
    entrance, band = partition.entrance, partition.entrance.policy.band
    if band is None:
        return None
    rows += len(again)
    surplus = entrance.surplus(partition.rows_offered + entrance.coming_rows)
    if surplus + band.samples_per_insert * rows <= band.most:
        return None
    text = f"rows put are {surplus:g} ahead of draws, and {rows} more would be beyond the band's {band.most:g}"
    return _out_of_band(f"{text}; draws make room", "draws", surplus, stuck=bool(entrance.draws))


def _out_of_band(text: str, others: str, surplus: float, *, stuck: bool) -> Finding:
    if stuck:
        text += f", but {others} wait as well, so neither can go on: widen the band"
    return Finding("band_too_narrow" if stuck else "draw_band", text, {"surplus": surplus})


def over_budget(partition: Partition, rows: int, size_bytes: int) -> Finding | None:
    """Which budget has no room for new rows; None if all have."""
    policy, entrance = partition.entrance.policy, partition.entrance
    held = len(partition.rows) + entrance.coming_rows
    if policy.max_rows is not None and held + rows > policy.max_rows:
        text = f"{held} of max_rows {policy.max_rows} rows are here or on their way"
        return Finding("rows_budget", text, {"rows": held, "most": policy.max_rows})
    held = partition.size_bytes + entrance.coming_bytes
    if policy.max_bytes is not None and held + size_bytes > policy.max_bytes:
        text = (
            f"{held} of max_bytes {policy.max_bytes} bytes are here or on their way, and {size_bytes} more would come"
        )
        return Finding("bytes_budget", text, {"bytes": held, "most": policy.max_bytes})
    oldest = oldest_allowed(partition)
    if policy.max_versions is not None and partition.rows.oldest_weight_version() < oldest:
        version = partition.rows.weight_version
        text = f"a row is older than weight version {oldest}, and max_versions is {policy.max_versions} up to {version}"
        return Finding("versions_budget", text, {"oldest_allowed": oldest, "most": policy.max_versions})
    return None


def oldest_allowed(partition: Partition) -> int:
    """The oldest weight version within max_versions."""
    most, version = partition.entrance.policy.max_versions, partition.rows.weight_version
    return 0 if most is None or version is None else version - most + 1


def why_full(partition: Partition, rows: int, size_bytes: int) -> list[Finding]:
    """Why new rows have no room, the main cause first. That is rows which stay although no task wants them if they take
    up a budget and are at least as many. O(rows).
    """
    pace, done = paced(partition, rows), done_with(partition)
    behind = Finding("queue_order", "other calls wait before this one")
    bound = pace or over_budget(partition, rows, size_bytes) or behind
    suffices = pace is None and bound is not behind and sum(found.numbers["rows"] for found in done) >= rows
    return [*done, bound] if suffices else [bound, *done]


def full(partition: Partition, rows: int, size_bytes: int) -> Refusal:
    """The refusal of new rows that have no room. O(rows)."""
    why = why_full(partition, rows, size_bytes)
    texts = "; ".join(finding.text for finding in why)
    message = f"partition {partition.partition_id!r} has no room for {counted(rows, 'new rows')}: {texts}"
    where, rows_here = partition.partition_id, len(partition.rows)
    return Refusal(Reason.PARTITION_FULL, message, partition_id=where, rows=rows_here, cause=why[0].cause)


def why_waiting(partition: Partition) -> str:
    """Why the first call at the entrance waits, and what would let it go on; empty if none waits. O(rows)."""
    entrance = partition.entrance
    for entry in entrance.waiting.values():
        return full(partition, entry.rows, entry.size_bytes).message
    for draw in entrance.draws.values():
        return out_of_band(partition, draw).message
    return ""


def may_draw(partition: Partition, call: DrawSamples) -> bool:
    """Whether a draw stays in the band."""
    band = partition.entrance.policy.band
    return band is None or partition.entrance.surplus(partition.rows_offered) - call.batch_size >= band.least


def why_never_drawn(partition: Partition, call: DrawSamples) -> Refusal | None:
    """The refusal of a draw that can never go on, however long it waits; None if it may."""
    band = partition.entrance.policy.band
    if band is not None and call.batch_size > band.most - band.least:
        message = (
            f"partition {call.partition_id!r}: a draw of {call.batch_size} rows can never stay in the band from "
            f"{band.least:g} to {band.most:g}; draw fewer rows at a time"
        )
        return Refusal(Reason.INVALID_REQUEST, message, partition_id=call.partition_id)
    return out_of_band(partition, call) if partition.is_ending and not may_draw(partition, call) else None


def why_out_of_band(partition: Partition, call: DrawSamples) -> Finding:
    """Why a draw would leave the band."""
    entrance, band = partition.entrance, partition.entrance.policy.band
    surplus = entrance.surplus(partition.rows_offered)
    text = (
        f"rows put are {surplus:g} ahead of draws, and a draw of {call.batch_size} rows would be below the band's "
        f"{band.least if band else 0:g}; {'no new rows come' if partition.is_ending else 'new rows make room'}"
    )
    return _out_of_band(text, "puts", surplus, stuck=bool(entrance.waiting))


def out_of_band(partition: Partition, call: DrawSamples) -> Refusal:
    """The refusal of a draw that would leave the band."""
    why = why_out_of_band(partition, call)
    message = f"partition {partition.partition_id!r}: {why.text}"
    return Refusal(Reason.TOO_FEW_ROWS, message, partition_id=partition.partition_id, cause=why.cause)


def _paces(partition: Partition) -> list[tuple[Task, int]]:
    """The tasks that pace their producers, and how many rows each takes ahead."""
    policies = [(task, task.policy) for task in partition.tasks.values()]
    return [(task, policy.most_ahead) for task, policy in policies if policy.most_ahead is not None]


def _before(partition: Partition, task: Task, most: int) -> int:
    """Rows before a task, on their way, or taken since the weight version moved. Those that have become too stale or do
    not fit its filter, which it will not get, are not looked for while there are at most `most` with them.
    """
    untaken, claimed, _, delayed, _ = task.counts()
    together = untaken + claimed + delayed + partition.entrance.coming_rows + task.taken_in_version
    if together <= most:
        return together
    slots = np.flatnonzero(partition.rows["alive"] & (task.states == UNTAKEN))
    return together - _lost(partition, task, slots)


def _lost(partition: Partition, task: Task, slots: Slots) -> int:
    """How many rows have become too stale for a task, or do not fit its filter."""
    return int(np.count_nonzero(too_old(partition.rows, task.policy)[slots] | task.is_rejected(slots)))


def done_with(partition: Partition) -> list[Finding]:
    """The rows that stay although no task wants them, if there are any. O(rows)."""
    if partition.definition.clear_when_consumed or not partition.tasks:
        return []
    slots = partition.rows.all_slots()
    each = [np.isin(task.states[slots], (CONSUMED, DEAD)) for task in partition.tasks.values()]
    done = int(np.count_nonzero(np.logical_and.reduce(each)))
    text = f"{counted(done, 'rows', 'are')} done with by every task: clear them, or register with clear_when_consumed"
    return [Finding("not_cleared", text, {"rows": done})] if done else []

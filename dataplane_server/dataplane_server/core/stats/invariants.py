"""The invariants of the core, checked from scratch after every test. A check changes nothing and costs O(rows)."""

from __future__ import annotations

import itertools

import numpy as np

from dataplane_server.core.calls.filters import filter_bytes
from dataplane_server.core.calls.values import BatchUnit, Slots
from dataplane_server.core.rows.regions import AnySpace
from dataplane_server.core.state.claim_table import ClaimTable
from dataplane_server.core.state.partition import Partition, definition_bytes
from dataplane_server.core.state.room import may_draw, over_budget, paced
from dataplane_server.core.state.state import State
from dataplane_server.core.state.task_rows import rows_left
from dataplane_server.core.stats.figures import compute_figures, compute_task_figures
from dataplane_server.core.tasks.group_view import GroupView
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import CLAIMED, CONSUMED, STATE_NAMES
from dataplane_server.core.tasks.views import AnyView
from dataplane_server.core.verbs.verbs import Verbs

_NO_ROWS = np.zeros(0, np.int64)


def check(state: State, verbs: Verbs) -> None:
    """Raises AssertionError that names the first broken invariant."""
    _law(not state.changes and not state.space.freed, "nothing was changed outside of a turn")
    _law(not state.effects, "effects were taken")
    _check_free_ranges(state.space)
    partitions = {id(p): p for p in (*state.partitions.values(), *verbs.reads.partitions())}.values()
    for partition in partitions:
        _check_rows(partition)
        _check_payloads(partition)
        _check_groups(partition)
    for partition in state.partitions.values():
        _check_definition(partition)
        for task in partition.tasks.values():
            _check_task(partition, task, verbs.table)
        _check_figures(partition)
        _check_entrance(partition)
    _law(verbs.flow.waiting == len(verbs.flow.tickets()), "calls at entrances are counted")
    _check_generations(state)
    _check_sessions(state, verbs.table)
    kept = sum(partition.rows.kept_bytes for partition in state.partitions.values())
    for partition in state.partitions.values():
        _check_bookkeeping(partition, verbs.steps.kept_bytes(partition.partition_id))
    of_verbs = verbs.writes.kept_bytes + verbs.queue.kept_bytes + verbs.flow.kept_bytes
    _law(state.bookkeeping.used_bytes == kept + of_verbs, "bookkeeping adds up")
    _check_bytes(state.space, list(partitions), verbs.admission.reserved_bytes)
    waits_for_nothing = state.space.free and verbs.admission.waiting and not state.space.used
    _law(not waits_for_nothing, "no put waits for an empty arena")


def _check_definition(partition: Partition) -> None:
    definition, fields = partition.definition, partition.fields.values()
    _law(tuple(partition.fields) == definition.fields, "fields are as defined")
    _law(tuple(partition.tasks) == definition.tasks, "tasks are as defined")
    indexes = {field.index for field in fields}
    _law(len(indexes) == len(fields), "no two fields have the same index")
    _law(partition.rows.places.width > max(indexes, default=-1), "every field has a place")
    per_token = {field.name for field in fields if field.per_token}
    _law(per_token == definition.per_token_fields, "per-token fields are as defined")
    consumed = [task.states[partition.rows.all_slots()] == CONSUMED for task in partition.tasks.values()]
    through = bool(np.logical_and.reduce(consumed).any()) if consumed else False
    _law(not (through and definition.clear_when_consumed), "a row that every task has consumed is cleared")


def _check_rows(partition: Partition) -> None:
    rows = partition.rows
    slots = rows.all_slots()
    _law(np.array_equal(np.sort(slots), np.flatnonzero(rows["alive"])), "every id has one live slot")
    _law(partition.rows_put_total == sum(partition.removed.values()) + len(rows), "put = removed + resident")
    _law(all(rows.find(rows.ids(slots)) == slots), "ids and slots name each other")
    _law(bool(np.all(np.diff(rows.generations(slots)) > 0)), "rows that arrived later have greater generations")
    per_token = [field for field in partition.fields.values() if field.per_token]
    for field in partition.fields.values():
        holding = slots[field.holds(slots)]
        _law(field.rows == len(holding), f"rows that hold field {field.name!r} are counted")
        size = sum(size for _, size in _pieces_of(partition, field.name))
        _law(field.size_bytes == size, f"bytes of field {field.name!r} are counted")
        lacking = slots[~field.holds(slots)]
        _law(not field.entries(lacking).any(), f"rows without field {field.name!r} have no place for it")
    for field in per_token:
        holding = slots[field.holds(slots)]
        same = field.entries(holding) == rows["sequence_length"][holding]
        _law(bool(np.all(same)), f"per-token field {field.name!r} has its row's length")


def _check_bookkeeping(partition: Partition, of_steps: int) -> None:
    of_tasks = sum(task.kept_bytes for task in partition.tasks.values())
    of_rows = partition.rows.counted_bytes + partition.groups.kept_bytes
    of_flow = filter_bytes(partition.entrance.policy.evict_where)
    counted = definition_bytes(partition.definition) + of_rows + of_tasks + of_steps + of_flow
    _law(partition.rows.kept_bytes == counted, f"bookkeeping of partition {partition.partition_id!r} is counted")


def _check_entrance(partition: Partition) -> None:
    entrance = partition.entrance
    _law(not (entrance.changed and entrance.waiting), "an entrance that has changed was looked at")
    for entry in list(entrance.waiting.values())[:1]:
        held_up = paced(partition, entry.rows) or over_budget(partition, entry.rows, entry.size_bytes)
        _law(bool(held_up), f"no call waits for room that there is in partition {partition.partition_id!r}")
    for draw in list(entrance.draws.values())[:1]:
        _law(not may_draw(partition, draw), f"no draw waits that stays in the band of {partition.partition_id!r}")


def _check_payloads(partition: Partition) -> None:
    rows = partition.rows
    slots = rows.all_slots()
    shared = rows["shared"][slots]
    _law(not (shared & ~rows["produced"][slots]).any(), "rows have produced what they share")
    having: dict[int, int] = {}
    for field in partition.fields.values():
        for offset in field.locations(slots[(shared & field.bit) != 0])[0].tolist():
            having[offset] = having.get(offset, 0) + 1
    for group in partition.groups:
        for name, (offset, entries, _) in group.shared.items():
            if entries * partition.fields[name].entry_bytes:
                having[offset] = having.get(offset, 0) + 1
    counted = {payload.offset: payload.owners for payload in rows.payloads if payload.owners}
    _law(counted == having, "owners of a payload are counted")
    known = {payload.key: payload for payload in rows.payloads if payload.owners and payload.key is not None}
    _law(rows.payloads.known == known, "a value that is put once is known as long as a row has it")
    unused = [payload for payload in rows.payloads if not payload.owners and not payload.held]
    _law(not unused, "a payload without owners and readers is freed")


def _check_groups(partition: Partition) -> None:
    rows, groups = partition.rows, partition.groups
    slots = rows.all_slots()
    numbers, hidden = rows["group"][slots], rows["hidden"][slots]
    found = set(numbers[numbers > 0].tolist())
    _law(found == {group.number for group in groups if group.size}, "every group has rows, or had none yet")
    for group in groups:
        _law(bool(group.size or group.reservation_id), f"group {group.group_id!r} without rows is reserved")
        _law(bool(group.reservation_id) or not group.shared, f"group {group.group_id!r} is finished and holds no value")
        members = slots[numbers == group.number]
        _law(group.size == len(members), f"the rows of group {group.group_id!r} are counted")
        _law(np.array_equal(groups.members(group.number), members), f"the rows of group {group.group_id!r} are its own")
        reserved = groups.reserved.get(group.reservation_id) is group
        _law(
            bool(np.all(rows["hidden"][members] == reserved)),
            f"group {group.group_id!r} is hidden or visible as a whole",
        )
    _law(not (hidden & (numbers == 0)).any(), "a hidden row has a group")
    _law(all(group in set(groups) for group in groups.reserved.values()), "reserved groups exist")


def _check_task(partition: Partition, task: Task, claims: ClaimTable) -> None:
    slots = partition.rows.all_slots()
    owned = claims.owned(partition, task.name)
    claimed = set(slots[task.states[slots] == CLAIMED].tolist())
    _law(len(owned) == len(set(owned)), f"task {task.name!r}: no row is in two claims")
    _law(set(owned) == claimed, f"task {task.name!r}: a row is claimed exactly while a claim holds it")
    _law(task.deliveries.open == len(claimed), f"task {task.name!r}: delivered = claimed + ended")
    counted = np.bincount(task.states[slots], minlength=len(STATE_NAMES))
    _law(task.counts() == tuple(counted.tolist()), f"task {task.name!r}: rows are counted by state")
    hidden = slots[partition.rows["hidden"][slots]]
    _law(not task.states[hidden].any(), f"task {task.name!r}: hidden rows are untaken")
    for view in task.views:
        _check_view(partition, task, view)
        if partition.is_ending:
            _law(
                _may_be_served(partition, task, view), f"task {task.name!r}: no claim waits for rows that will not come"
            )


def _may_be_served(partition: Partition, task: Task, view: AnyView) -> bool:
    grouped = isinstance(view, GroupView)
    amounts = [waiter.amount for waiter in view.waiters.values()]
    units: list[BatchUnit] = ["groups" if grouped and not amount.counts_rows else "rows" for amount in amounts]
    return all(
        rows_left(partition, task, grouped, unit) >= amount.min_size
        for amount, unit in zip(amounts, units, strict=True)
    )


def _check_view(partition: Partition, task: Task, view: AnyView) -> None:
    slots = partition.rows.all_slots()
    ready = slots[view.readiness.of(slots, keep=False)]
    _law(not task.is_stale(ready).any(), f"task {task.name!r}: no ready row is too stale")
    _law(not task.is_excluded(ready).any(), f"task {task.name!r}: every ready row fits the policy's filter")
    if isinstance(view, GroupView):
        numbers = partition.rows["group"]
        complete = [g.number for g in partition.groups if 0 < np.count_nonzero(numbers[ready] == g.number) == g.size]
        ready = ready[np.isin(numbers[ready], [0, *complete])]
        count = len(complete) + int(np.count_nonzero(numbers[ready] == 0))
    else:
        count = len(ready)
    queued = view.queued()
    _law(sorted(queued) == sorted(ready.tolist()), f"task {task.name!r}: exactly the ready rows are queued")
    _law(view.ready == count, f"task {task.name!r}: ready rows or groups are counted")
    _law(view.ready_rows == len(ready), f"task {task.name!r}: ready rows are counted")
    head = next(iter(view.waiters.values()), None)
    _law(head is None or not view.has(head.amount), f"task {task.name!r}: no claim waits for rows that are ready")


def _check_figures(partition: Partition) -> None:
    """Compare the cached figures of a partition and its tasks with computed ones."""
    cached = partition.figures
    _law(cached in (None, compute_figures(partition)), f"cached figures of {partition.partition_id!r} are up to date")
    for task in partition.tasks.values():
        cached = task.figures
        _law(
            cached in (None, compute_task_figures(partition, task)),
            f"task {task.name!r}: cached figures are up to date",
        )


def _check_generations(state: State) -> None:
    generations = np.concatenate(
        [_NO_ROWS, *(p.rows.generations(p.rows.all_slots()) for p in state.partitions.values())]
    )
    _law(len(np.unique(generations)) == len(generations), "no two rows have the same generation")
    _law(int(generations.max(initial=0)) < state.generations.next, "the next generation is new")


def _check_sessions(state: State, claims: ClaimTable) -> None:
    held = {(claim_id, session.session_id) for session in state.sessions for claim_id in session.claims}
    _law(held == claims.holds(), "sessions and claims name each other")
    reserved = [group for partition in state.partitions.values() for group in partition.groups.reserved.values()]
    holders = {group.session_id for group in reserved if group.session_id}
    _law(holders <= {session.session_id for session in state.sessions}, "reserved groups are held by open sessions")


def _check_free_ranges(space: AnySpace) -> None:
    merged = sorted(space.free_ranges())
    _law(all(a < b for (_, a), (b, _) in itertools.pairwise(merged)), "free ranges are disjoint and maximal")
    ranges = sorted([*merged, *space.pending_ranges()])
    _law(all(a <= b for (_, a), (b, _) in itertools.pairwise(ranges)), "no range is freed twice")
    _law(space.capacity - sum(end - start for start, end in ranges) == space.used, "used and free add up")


def _check_bytes(space: AnySpace, partitions: list[Partition], reserved: int) -> None:
    resident = sum(partition.size_bytes for partition in partitions)
    owed = sum(partition.rows.owed_bytes for partition in partitions)
    deferred = [(start, end - start) for start, end in space.deferred_ranges()]
    counted = resident + owed + reserved + sum(size for _, size in deferred)
    _law(counted == space.used, "bytes of rows, readers, reservations and deferred releases are the bytes in use")
    taken = sorted([*deferred, *(piece for partition in partitions for piece in _pieces(partition))])
    _law(all(a + n <= b for (a, n), (b, _) in itertools.pairwise(taken)), "no two values overlap")


def _pieces(partition: Partition) -> list[tuple[int, int]]:
    return [piece for name in partition.fields for piece in _pieces_of(partition, name)]


def _pieces_of(partition: Partition, name: str) -> list[tuple[int, int]]:
    """Offset and bytes of the values of a field that are not empty; a shared value once."""
    field, slots = partition.fields[name], partition.rows.all_slots()
    sharing = (partition.rows["shared"][slots] & field.bit) != 0
    of_groups = [group.shared[name] for group in partition.groups if name in group.shared]
    shared = _located(partition, name, slots[sharing])
    shared += [(offset, entries * field.entry_bytes) for offset, entries, _ in of_groups if entries * field.entry_bytes]
    return _located(partition, name, slots[field.holds(slots) & ~sharing]) + sorted(set(shared))


def _located(partition: Partition, name: str, slots: Slots) -> list[tuple[int, int]]:
    field = partition.fields[name]
    offsets, entries = field.locations(slots)
    sizes = entries * field.entry_bytes
    return [(o, n) for o, n in zip(offsets.tolist(), sizes.tolist(), strict=True) if n]


def _law(holds: bool, name: str) -> None:
    if not holds:
        raise AssertionError(f"broken invariant: {name}")

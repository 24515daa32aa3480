"""The laws of the core, checked from scratch. Tests call this after every case; it changes nothing and costs
O(rows).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from dataplane_server.core.partition import Partition
from dataplane_server.core.space import Space
from dataplane_server.core.state import State
from dataplane_server.core.tasks import CLAIMED, UNTAKEN, Task, View

if TYPE_CHECKING:
    from dataplane_server.core.claims import ClaimDesk
    from dataplane_server.core.reads import Reads
    from dataplane_server.core.writes import Writes


def check(state: State, claims: ClaimDesk, writes: Writes, reads: Reads) -> None:
    """Raise AssertionError that names the first law that does not hold."""
    _check_free_ranges(state.space)
    partitions = {id(p): p for p in (*state.partitions.values(), *reads.partitions())}.values()
    _law(not state.effects, "effects were not taken")
    for partition in partitions:
        _check_rows(partition)
    for partition in state.partitions.values():
        for task in partition.tasks.values():
            _check_task(partition, task, claims)
    _check_bytes(state.space, list(partitions), writes.admission.reserved_bytes)
    _law(not (state.space.free and writes.admission.waiting and not state.space.used), "a put waits for an empty arena")


def _check_rows(partition: Partition) -> None:
    rows = partition.rows
    slots = rows.all_slots()
    _law(np.array_equal(np.sort(slots), np.flatnonzero(rows["alive"])), "every id has one live slot")
    _law(partition.rows_put_total == partition.rows_cleared_total + len(rows), "put = cleared + resident")
    _law(all(rows.find(rows.ids(slots)) == slots), "ids and slots name each other")
    per_token = [field for field in partition.fields.values() if field.per_token]
    for field in partition.fields.values():
        holding = slots[field.holds(slots)]
        _law(field.rows == len(holding), f"rows that hold field {field.name!r} are counted")
        sizes = field.entries(holding) * field.unit_bytes
        _law(field.size_bytes == int(sizes.sum()), f"bytes of field {field.name!r} are counted")
        lacking = slots[~field.holds(slots)]
        _law(not field.entries(lacking).any(), f"rows without field {field.name!r} have no place for it")
    for field in per_token:
        holding = slots[field.holds(slots)]
        same = field.entries(holding) == rows["sequence_length"][holding]
        _law(bool(np.all(same)), f"per-token field {field.name!r} has its row's length")


def _check_task(partition: Partition, task: Task, claims: ClaimDesk) -> None:
    slots = partition.rows.all_slots()
    owned = claims.owned(partition, task.name)
    claimed = set(slots[task.states[slots] == CLAIMED].tolist())
    _law(len(owned) == len(set(owned)), f"task {task.name!r}: no row is in two claims")
    _law(set(owned) == claimed, f"task {task.name!r}: a row is claimed exactly while a claim holds it")
    for view in task.views:
        _check_view(partition, task, view)


def _check_view(partition: Partition, task: Task, view: View) -> None:
    slots = partition.rows.all_slots()
    produced = (partition.rows["produced"][slots] & view.mask) == view.mask
    ready = slots[produced & (task.states[slots] == UNTAKEN)]
    _law(sorted(set(view.queued())) == sorted(ready.tolist()), f"task {task.name!r}: exactly the ready rows are queued")
    _law(view.ready == len(ready), f"task {task.name!r}: ready rows are counted")
    _law(view.next_waiter() is None, f"task {task.name!r}: nobody waits for rows that are there")


def _check_free_ranges(space: Space) -> None:
    settled = sorted(space.free_ranges())
    _law(all(a < b for (_, a), (b, _) in itertools.pairwise(settled)), "free ranges are disjoint and maximal")
    ranges = sorted([*settled, *space.piled_ranges()])
    _law(all(a <= b for (_, a), (b, _) in itertools.pairwise(ranges)), "nothing on the pile is free twice")
    _law(space.capacity - sum(end - start for start, end in ranges) == space.used, "used and free add up")


def _check_bytes(space: Space, partitions: list[Partition], reserved: int) -> None:
    resident = sum(partition.size_bytes for partition in partitions)
    owed = sum(partition.rows.owed_bytes for partition in partitions)
    _law(resident + owed + reserved == space.used, "bytes of rows, readers and reservations are the bytes in use")
    pieces = [piece for partition in partitions for piece in _pieces(partition)]
    taken = sorted(pieces)
    _law(all(a + n <= b for (a, n), (b, _) in itertools.pairwise(taken)), "no two values overlap")


def _pieces(partition: Partition) -> list[tuple[int, int]]:
    pieces: list[tuple[int, int]] = []
    slots = partition.rows.all_slots()
    for field in partition.fields.values():
        offsets, entries = field.locations(slots[field.holds(slots)])
        sizes = entries * field.unit_bytes
        pieces.extend((o, n) for o, n in zip(offsets.tolist(), sizes.tolist(), strict=True) if n)
    return pieces


def _law(holds: bool, name: str) -> None:
    if not holds:
        raise AssertionError(f"broken invariant: {name}")

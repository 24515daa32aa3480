"""White-box tests of rows, views and tasks: slots that are reused, queues that stay short, views that are rebuilt."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.caller import Caller

from dataplane_server.core.rows.group_table import GroupTable
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.rows.space import Space
from dataplane_server.core.tasks.readiness import Kind
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import Amount
from dataplane_server.core.tasks.view import View
from dataplane_server.core.tasks.views import MAX_VIEWS


@pytest.fixture
def rows() -> RowTable:
    return RowTable("p", Space(1000))


@pytest.fixture
def task(rows: RowTable) -> Task:
    return Task("train", "p", rows, GroupTable(rows), {})


def add(rows: RowTable, *sample_ids: str, produced: int = 1) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    slots = rows.find_existing(sample_ids)
    rows.create(sample_ids, slots)
    rows["produced"][slots] |= np.uint64(produced)
    return slots


# -- views -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 5000])
def test_a_queue_does_not_grow_with_rows_given_back(rows: RowTable, task: Task, times: int) -> None:
    add(rows, *(f"r{i}" for i in range(8)))
    claims, idle = task.view(Kind(1)), task.view(Kind(0))
    assert isinstance(idle, View)
    order = idle.queued()
    for _ in range(times):
        slots = claims.pop(Amount(8, 8))
        task.take(slots, consume=False)
        task.return_unused(slots, "released")
    assert idle.queued()[:8] == order
    assert len(idle._queue) <= 4 * 1024
    taken = idle.pop(Amount(8, 8))
    task.take(taken, consume=False)
    assert taken.tolist() == order
    assert idle.queued() == []


def test_idle_views_beyond_the_most_kept_are_forgotten_and_rebuilt(rows: RowTable, task: Task) -> None:
    slots = add(rows, "x", "y", produced=(1 << 40) - 1)
    for bit in range(MAX_VIEWS + 8):
        task.view(Kind(1 << bit))
    assert len(list(task.views)) == MAX_VIEWS
    task.take(slots[:1], consume=True)
    assert task.view(Kind(1)).queued() == [slots[1]]
    assert len(list(task.views)) == MAX_VIEWS


def test_a_forgotten_view_leaves_no_column_behind(caller: Caller) -> None:
    fields = [f"f{i}" for i in range(MAX_VIEWS + 9)]
    caller.register(fields, ("t",), partition_id="q")
    caller.put_rows(["s1"], *fields, partition_id="q")
    for name in fields:
        caller.release(caller.take(name, task="t", partition_id="q").claim_id)
    columns = caller.plane._state.partitions["q"].rows._columns
    assert sum(name.startswith("ready:") for name in columns) <= caller.plane.totals().waiting_claims + MAX_VIEWS


def test_dropped_tasks_and_fields_leave_no_column_behind(caller: Caller) -> None:
    columns = caller.plane._state.partitions["p"].rows._columns
    caller.register(("a",), ())
    bare = set(columns)
    for round_ in range(3):
        caller.register(("a", f"b{round_}"), (f"t{round_}",))
        caller.apply(caller.claim_call(f"b{round_}", task=f"t{round_}"))
        caller.register(("a",), (f"t{round_}",))
        caller.register(("a", f"c{round_}"), (f"t{round_}",))
        caller.apply(caller.claim_call("a", f"c{round_}", task=f"t{round_}"))
        caller.register(("a",), (f"t{round_}",))
        assert not [name for name in columns if name.startswith("ready:")]
    caller.register(("a",), ())
    caller.plane.take_effects()
    assert set(columns) == bare

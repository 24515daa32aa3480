"""Partitions: defined, replaced, described, dropped; every row ever put is cleared or still there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import ClearResult, DropResult, Failed, FieldInfo, Granted, TaskInfo, Waiting
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import ClearSamples, DropPartition, MergeFreeRanges, RegisterPartition
from dataplane_server.core.calls.values import Definition


def waits(caller: Caller, *fields: str, task: str = "train", batch_size: int = 1) -> int:
    waiting = caller.apply(caller.claim_call(*fields, task=task, batch_size=batch_size))
    assert isinstance(waiting, Waiting)
    return waiting.ticket


# -- defined -----------------------------------------------------------------------------------------------------------


def test_a_new_partition_is_described_as_it_was_defined(caller: Caller) -> None:
    definition = Definition("q", ("x", "y"), ("t",), 7, frozenset("x"), 4, {"y": ("no", "yes")})
    info = caller.apply(RegisterPartition(caller.request_id(), definition)).partition
    assert info.definition == definition
    assert info.fields == (FieldInfo("x", None, True, 0, 0), FieldInfo("y", None, False, 0, 0))
    assert info.tasks == (TaskInfo("t", 0, 0, 0, 0, 0),)
    assert (info.rows, info.size_bytes, info.rows_put_total, info.rows_cleared_total) == (0, 0, 0, 0)


def test_a_partition_may_have_64_fields_and_a_claim_may_require_them_all(caller: Caller) -> None:
    fields = [f"f{i}" for i in range(64)]
    caller.register(fields, partition_id="wide")
    caller.put_rows(["s1"], *fields[:63], partition_id="wide")
    waiting = caller.apply(caller.claim_call(*fields, partition_id="wide"))
    assert isinstance(waiting, Waiting)
    caller.put_rows(["s1"], fields[63], partition_id="wide")
    (effect,) = caller.plane.take_effects()
    assert isinstance(effect, Granted)
    assert effect.grant.sample_ids == ("s1",)


# -- replaced ----------------------------------------------------------------------------------------------------------


def test_replacing_a_definition_keeps_rows_and_makes_every_row_ready_in_order_of_arrival(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3", "s4"], "a", "b")
    caller.commit(caller.take("a").claim_id)
    caller.take("a", "b")
    caller.take("b", consume=True)
    info = caller.register(tasks=("train", "score"))
    assert info.rows == 4
    ended = {"committed": 2, "reset": 1}
    assert info.tasks[0] == TaskInfo("train", 4, 0, 0, 0, 0, delivered_rows_total=3, ended_deliveries=ended)
    caller.release(caller.take("a", batch_size=4).claim_id)
    for fields in (("b",), ("a",), ("a", "b"), ()):
        grant = caller.take(*fields, batch_size=4)
        assert grant.sample_ids == ("s1", "s2", "s3", "s4"), fields
        caller.release(grant.claim_id)


def test_claims_that_wait_for_what_is_gone_end_and_the_others_go_on(caller: Caller) -> None:
    for_task = waits(caller, "a", task="score")
    for_field = waits(caller, "a", "b")
    stays = waits(caller, "a", batch_size=2)
    caller.register(("a", "c"), ("train", "other"))
    task_gone, field_gone = caller.plane.take_effects()
    assert isinstance(task_gone, Failed)
    assert isinstance(field_gone, Failed)
    assert (task_gone.ticket, task_gone.refusal.reason) == (for_task, Reason.TASK_NOT_REGISTERED)
    assert task_gone.refusal.metadata == {"partition_id": "p", "task": "score"}
    assert (field_gone.ticket, field_gone.refusal.reason) == (for_field, Reason.FIELD_NOT_DECLARED)
    assert field_gone.refusal.metadata == {"partition_id": "p", "field": "b"}
    caller.put_rows(["s1", "s2"], "a")
    assert [effect.ticket for effect in caller.plane.take_effects()] == [stays]


def test_a_field_dropped_and_declared_again_may_take_another_shape(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    caller.clear()
    caller.register(("b",))
    caller.register(("a", "b"))
    caller.put(caller.put_call(["s1"], columns=[ColumnSpec("a", Shape("dense", "float32", ()))]))


# -- dropped -----------------------------------------------------------------------------------------------------------


def test_dropping_gives_everything_back(caller: Caller) -> None:
    caller.put_rows(["s1", "s2"], "a", size=5)
    caller.take("a")
    assert caller.apply(DropPartition(caller.request_id(), "p")) == DropResult(2)
    totals = caller.plane.totals()
    assert (totals.memory_used_bytes, totals.rows, totals.partitions, totals.open_claims) == (0, 0, 0, 0)


def test_dropping_what_does_not_exist_is_fine(caller: Caller) -> None:
    assert caller.apply(DropPartition(caller.request_id(), "nowhere")) == DropResult(0)


def test_claims_that_wait_on_a_dropped_partition_end(caller: Caller) -> None:
    caller.register(partition_id="q")
    tickets = [waits(caller, "a"), waits(caller, "b", task="score")]
    stays = caller.apply(caller.claim_call("a", partition_id="q"))
    assert isinstance(stays, Waiting)
    caller.apply(DropPartition(caller.request_id(), "p"))
    effects = caller.plane.take_effects()
    assert [effect.ticket for effect in effects] == tickets
    for effect in effects:
        assert isinstance(effect, Failed)
        assert effect.refusal.reason is Reason.PARTITION_NOT_FOUND
        assert effect.refusal.metadata == {"partition_id": "p"}
    assert caller.plane.totals().waiting_claims == 1


# -- every row is accounted for ----------------------------------------------------------------------------------------


def test_rows_put_are_rows_cleared_and_rows_resident(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a", size=2)
    caller.put_rows(["s3", "s4"], "a", size=2)
    assert caller.clear(["s1", "nothing"]) == ClearResult(1, 2)
    assert caller.clear(["s1"]) == ClearResult(0, 0)
    caller.put_rows(["s1"], "a")
    info = caller.plane.partition_info("p")
    assert (info.rows_put_total, info.rows_cleared_total, info.rows) == (5, 1, 4)
    assert caller.clear() == ClearResult(4, 7)
    info = caller.plane.partition_info("p")
    assert (info.rows_put_total, info.rows_cleared_total, info.rows) == (5, 5, 0)


@pytest.mark.parametrize(
    ("put", "taken", "committed", "consumed"),
    [
        pytest.param(2, 2, True, False, id="fewer rows than announced"),
        pytest.param(3, 2, True, False, id="a row is untaken"),
        pytest.param(3, 3, False, False, id="rows are claimed"),
        pytest.param(3, 3, True, True, id="as many as announced are consumed"),
        pytest.param(4, 4, True, True, id="more than announced are consumed"),
    ],
)
def test_a_partition_is_consumed_when_the_announced_rows_are(
    caller: Caller, put: int, taken: int, committed: bool, consumed: bool
) -> None:
    caller.register(num_samples=3)
    caller.put_rows([f"s{i}" for i in range(put)], "a")
    claim_id = caller.take("a", batch_size=taken).claim_id
    if committed:
        caller.commit(claim_id)
    info = caller.plane.consumption("p", ["train"])
    assert info.consumed == consumed
    assert info.tasks == caller.plane.partition_info("p").tasks


def test_a_partition_is_consumed_when_all_tasks_asked_for_are_through(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    caller.take("a", consume=True)
    assert caller.plane.consumption("p", ["train"]).consumed
    assert not caller.plane.consumption("p", ["score", "train"]).consumed


def test_a_partition_of_very_many_rows_is_cleared_whole(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    caller.register(tasks=("train",))
    caller.put_rows([f"s{row}" for row in range(40_000)], "a", size=3)
    caller.take("a", batch_size=10)
    assert caller.clear() == ClearResult(40_000, 120_000)
    assert caller.used == 0
    caller.put_rows(["s1"], "a")
    assert caller.take("a").sample_ids == ("s1",)


def test_what_a_clear_puts_off_is_done_between_calls_and_changes_nothing(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(memory_bytes=1 << 20)
    caller.register()
    ids = [f"s{row}" for row in range(6000)]
    caller.put(caller.put_call(ids, {"a": [9] * 6000}))
    caller.apply(ClearSamples("clear", "p", ids[::2]))
    before, left = caller.state(), 0
    while caller.plane.has_deferred_frees:
        caller.apply(MergeFreeRanges())
        caller.plane.check_invariants()
        left += 1
    assert left == 12
    assert caller.state() == before

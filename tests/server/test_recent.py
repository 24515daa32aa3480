"""Counts of the last minute, which descriptions of partitions have beside totals."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.limits import Limits
from dataplane_server.service import translate
from dataplane_server.service.recent import Recent
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.records import duration


@pytest.fixture
def caller() -> Caller:
    """With partition p: fields a and b, task train."""
    caller = Caller(Limits(memory_bytes=1 << 20))
    caller.register()
    return caller


@pytest.fixture
def recent(caller: Caller) -> Recent:
    recent = Recent(caller.plane, lambda: caller.now)
    recent.begin("p")
    return recent


async def pass_time(caller: Caller, recent: Recent, seconds: int) -> None:
    for _ in range(seconds // 5):
        caller.pass_time(5.0)
        await recent.note_all()


def told(caller: Caller, recent: Recent, partition_id: str = "p") -> pb.Partition:
    message = translate.rows.partition(caller.plane.partition_info(partition_id, caller.now))
    recent.tell([message])
    return message


def move_row(caller: Caller, sample_id: str) -> None:
    """16 bytes put, 8 bytes read, claimed, committed and cleared."""
    caller.put_rows([sample_id], "a", "b", size=8)
    caller.read([sample_id], "a")
    caller.commit(caller.take("a").claim_id)
    caller.clear([sample_id])


async def test_from_registration_on_all_is_counted(caller: Caller, recent: Recent) -> None:
    move_row(caller, "s")
    await pass_time(caller, recent, 20)
    message = told(caller, recent)
    flow = pb.RecentFlow(rows_put=1, removed_rows={"consumed": 1}, written_bytes=16, read_rows=1, read_bytes=8)
    flow.period.FromSeconds(20)
    assert message.recent == flow
    (task,) = message.tasks
    assert (task.recent.claims, task.recent.delivered_rows, task.recent.consumed_rows) == (1, 1, 1)
    assert task.recent.ended_deliveries == {"committed": 1}
    assert sum(task.recent.state_seconds.values()) == 20.0


async def test_what_is_older_than_a_minute_is_in_the_totals_only(caller: Caller, recent: Recent) -> None:
    move_row(caller, "old")
    await pass_time(caller, recent, 65)
    caller.put_rows(["new"], "a")
    message = told(caller, recent)
    (task,) = message.tasks
    assert message.recent == pb.RecentFlow(period=duration(55.0), rows_put=1, written_bytes=1)
    assert (message.rows_put_total, task.consumed_rows_total, task.recent.consumed_rows) == (2, 1, 0)
    assert sum(task.recent.state_seconds.values()) == 55.0


async def test_after_a_pause_nothing_is_told_until_it_counts_again(caller: Caller, recent: Recent) -> None:
    await pass_time(caller, recent, 20)
    caller.pass_time(300.0)
    assert not told(caller, recent).HasField("recent")
    await pass_time(caller, recent, 10)
    assert told(caller, recent).recent.period.seconds == 5


async def test_a_partition_that_begins_again_does_not_count_below_zero(caller: Caller, recent: Recent) -> None:
    move_row(caller, "s")
    await pass_time(caller, recent, 5)
    caller.register(tasks=("train", "new"))
    message = told(caller, recent)
    assert [task.recent.consumed_rows for task in message.tasks] == [0, 0]


async def test_of_very_many_partitions_those_registered_last_are_left_out(caller: Caller, recent: Recent) -> None:
    for number in range(520):
        caller.register(partition_id=f"p{number}")
    await recent.note_all()
    has = {name: told(caller, recent, name).HasField("recent") for name in ("p", "p510", "p511", "p519")}
    assert has == {"p": True, "p510": True, "p511": False, "p519": False}

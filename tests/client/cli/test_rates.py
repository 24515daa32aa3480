"""Rates between two snapshots of a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataplane_client.cli._rates import PartitionRates, Snapshot, compute_rates
from dataplane_client.descriptions import PartitionDescription, ServerStatus, TaskStatus
from dataplane_client.recent import RecentFlow, RecentTask

TASK = TaskStatus(
    task="train",
    untaken_rows=5,
    claimed_rows=0,
    consumed_rows=0,
    consumed_rows_total=100,
    waiting_claims=0,
    delayed_rows=0,
    dead_rows=0,
    delivered_rows_total=100,
    ended_deliveries={},
    state_seconds={},
)
PARTITION = PartitionDescription(
    partition_id="p",
    fields=(),
    tasks=(TASK,),
    num_samples=0,
    grpo_group_size=None,
    enums={},
    rows=5,
    size_bytes=500,
    rows_put_total=105,
    rows_cleared_total=100,
    max_deliveries=0,
    removed_rows={},
    open_groups=0,
    written_bytes_total=10_500,
    read_bytes_total=10_000,
)
STATUS = ServerStatus("1", 1000, 500, rows=5, uptime_s=60.0, waiting_claims=0, waiting_puts=0, sessions=1)
BEFORE = Snapshot(1000.0, STATUS, (PARTITION,))


def later(partition: PartitionDescription, *, seconds: float = 2.0, uptime_s: float | None = None) -> Snapshot:
    uptime_s = STATUS.uptime_s + seconds if uptime_s is None else uptime_s
    return Snapshot(BEFORE.at_s + seconds, replace(STATUS, uptime_s=uptime_s), (partition,))


def moved(partition: PartitionDescription) -> PartitionDescription:
    """The partition after 40 rows of 100 bytes were put, 20 read, and 10 consumed."""
    task = replace(TASK, consumed_rows_total=TASK.consumed_rows_total + 10)
    return replace(
        partition,
        tasks=(task,),
        rows_put_total=partition.rows_put_total + 40,
        written_bytes_total=partition.written_bytes_total + 4000,
        read_bytes_total=partition.read_bytes_total + 2000,
    )


def rates(entry: PartitionRates) -> tuple[float | None, ...]:
    return (entry.put_rows_per_s, entry.written_bytes_per_s, entry.read_bytes_per_s, entry.consumed_rows_per_s["train"])


UNKNOWN = (None, None, None, None)


def test_rates_are_differences_divided_by_the_time_between_two_snapshots() -> None:
    (entry,) = compute_rates(BEFORE, later(moved(PARTITION)))
    assert rates(entry) == (20.0, 2000.0, 1000.0, 5.0)


def test_the_first_snapshot_has_no_rates() -> None:
    (entry,) = compute_rates(None, BEFORE)
    assert rates(entry) == UNKNOWN


def test_without_a_snapshot_before_rates_are_of_the_last_minute() -> None:
    task = replace(TASK, recent=RecentTask(20.0, 0, 0, 60, {}, {}))
    partition = replace(PARTITION, tasks=(task,), recent=RecentFlow(20.0, 40, {}, 4000, 0, 2000))
    (entry,) = compute_rates(None, later(partition))
    assert rates(entry) == (2.0, 200.0, 100.0, 3.0)


def test_a_new_partition_has_no_rates() -> None:
    assert [rates(entry) for entry in compute_rates(replace(BEFORE, partitions=()), later(PARTITION))] == [UNKNOWN]


def test_a_partition_that_is_gone_is_not_shown() -> None:
    assert compute_rates(BEFORE, replace(later(PARTITION), partitions=())) == []


@pytest.mark.parametrize(("seconds", "uptime_s"), [(2.0, 0.5), (2.0, 60.0), (600.0, 300.0)])
def test_after_a_restart_of_the_server_there_are_no_rates(seconds: float, uptime_s: float) -> None:
    """Also if its counters or its uptime exceed those of the server before."""
    (entry,) = compute_rates(BEFORE, later(moved(PARTITION), seconds=seconds, uptime_s=uptime_s))
    assert rates(entry) == UNKNOWN


@pytest.mark.parametrize("counter", ["rows_put_total", "written_bytes_total", "read_bytes_total"])
def test_a_partition_whose_counter_went_back_has_no_rates(counter: str) -> None:
    after = replace(moved(PARTITION), **{counter: 7})  # type: ignore[arg-type]
    (entry,) = compute_rates(BEFORE, later(after))
    assert rates(entry) == UNKNOWN


def test_a_task_whose_counter_went_back_has_no_rate_while_the_partition_has() -> None:
    after = replace(moved(PARTITION), tasks=(replace(TASK, consumed_rows_total=3),))
    (entry,) = compute_rates(BEFORE, later(after))
    assert rates(entry) == (20.0, 2000.0, 1000.0, None)

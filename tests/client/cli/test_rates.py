"""Rates between two snapshots of a server.

White-box: the times between two looks are chosen.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dataplane_client.cli._rates import PartitionRates, Snapshot, compute_rates
from dataplane_client.records.descriptions import PartitionDescription, ServerStatus, TaskStatus
from dataplane_client.records.recent import RecentFlow, RecentTask

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


MOVED, UNKNOWN = moved(PARTITION), (None, None, None, None)
CASES: dict[str, tuple[Snapshot | None, Snapshot, list[tuple[float | None, ...]]]] = {
    "differences divided by the time": (BEFORE, later(MOVED), [(20.0, 2000.0, 1000.0, 5.0)]),
    "the first snapshot": (None, BEFORE, [UNKNOWN]),
    "a new partition": (replace(BEFORE, partitions=()), later(PARTITION), [UNKNOWN]),
    "a partition that is gone": (BEFORE, replace(later(PARTITION), partitions=()), []),
    "a server that was restarted": (BEFORE, later(MOVED, uptime_s=0.5), [UNKNOWN]),
    "one that was up as long before": (BEFORE, later(MOVED, uptime_s=60.0), [UNKNOWN]),
    "one that has been up longer since": (BEFORE, later(MOVED, seconds=600.0, uptime_s=300.0), [UNKNOWN]),
    "a counter of puts that went back": (BEFORE, later(replace(MOVED, rows_put_total=7)), [UNKNOWN]),
    "a counter of writes that went back": (BEFORE, later(replace(MOVED, written_bytes_total=7)), [UNKNOWN]),
    "a counter of reads that went back": (BEFORE, later(replace(MOVED, read_bytes_total=7)), [UNKNOWN]),
    "a task's counter that went back": (
        BEFORE,
        later(replace(MOVED, tasks=(replace(TASK, consumed_rows_total=3),))),
        [(20.0, 2000.0, 1000.0, None)],
    ),
}


@pytest.mark.parametrize(("before", "after", "expected"), CASES.values(), ids=CASES)
def test_rates_are_those_of(before: Snapshot | None, after: Snapshot, expected: list[tuple[float | None, ...]]) -> None:
    assert [rates(entry) for entry in compute_rates(before, after)] == expected


def test_without_a_snapshot_before_rates_are_of_the_last_minute() -> None:
    task = replace(TASK, recent=RecentTask(20.0, 0, 0, 60, {}, {}))
    partition = replace(PARTITION, tasks=(task,), recent=RecentFlow(20.0, 40, {}, 4000, 0, 2000))
    (entry,) = compute_rates(None, later(partition))
    assert rates(entry) == (2.0, 200.0, 100.0, 3.0)

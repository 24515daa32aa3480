"""Figures: per-partition and per-task metrics as columns, cached until the partition or the task changes.

They are the facts of `PartitionInfo` and `TaskInfo`, without definitions. A server with a thousand partitions is
scraped four times a minute, and most partitions have not changed in between. So each partition and task keeps its last
figures, with points in time in place of ages, until it changes; `core.turn` drops them then. `check_invariants`
compares cached with computed figures. None means that the figure does not exist.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import get_args

from dataplane_server.core.state.counters import PartitionCounters
from dataplane_server.core.state.partition import REASONS, Partition
from dataplane_server.core.state.task_rows import oldest_untaken
from dataplane_server.core.tasks.deliveries import How
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import STATE_NAMES, TASK_STATES, TaskCounters

Column = Sequence[float | None]

_OF_PARTITION = [field.name for field in dataclasses.fields(PartitionCounters)]
_OF_TASK = [field.name for field in dataclasses.fields(TaskCounters)]

PARTITION_FIGURES: tuple[str, ...] = (
    "rows",
    "size_bytes",
    "oldest_row_age_s",
    "newest_weight_version",
    "weight_version",
    "open_groups",
    "rows_put",
    "drawn_rows",
    *(f"removed_{why}" for why in REASONS),
    *_OF_PARTITION,
)
"""Ages are in seconds at the time of the query."""
TASK_FIGURES: tuple[str, ...] = (
    *STATE_NAMES,
    "ready",
    "oldest_untaken_age_s",
    "weight_version_lag",
    "waiting_claims",
    "longest_wait_s",
    "rows_consumed",
    "deliveries",
    *_OF_TASK,
    *(f"ended_{how}" for how in get_args(How)),
    *(f"{state}_s" for state in TASK_STATES),
)
"""Rows by state, waits and ages in seconds at the time of the query, totals, deliveries by how they ended, and seconds
by state of the task.
"""


def partition_columns(partitions: Iterable[Partition], now: float) -> dict[str, Column]:
    """A column for each of PARTITION_FIGURES, an entry for each partition."""
    partitions = list(partitions)
    columns = _columns(PARTITION_FIGURES, [_cached_figures(partition) for partition in partitions])
    columns["oldest_row_age_s"] = _ages(partitions, columns["oldest_row_age_s"], now)
    return columns


def task_columns(partitions: Iterable[Partition], now: float) -> dict[str, Column]:
    """A column for each of TASK_FIGURES, an entry for each task of each partition."""
    tasks = [(partition, task) for partition in partitions for task in partition.tasks.values()]
    figures = [_cached_task_figures(partition, task) for partition, task in tasks]
    columns = _columns((*TASK_FIGURES, "state", "since"), figures)
    states, since = columns.pop("state"), columns.pop("since")
    ages = _ages([partition for partition, _ in tasks], columns["oldest_untaken_age_s"], now)
    columns["oldest_untaken_age_s"] = ages
    columns["longest_wait_s"] = [0.0 if began is None else max(now - began, 0.0) for began in columns["longest_wait_s"]]
    for number, state in enumerate(TASK_STATES):
        columns[f"{state}_s"] = [
            (entered or 0.0) + (max(now - began, 0.0) if present == number and began is not None else 0.0)
            for entered, present, began in zip(columns[f"{state}_s"], states, since, strict=True)
        ]
    return columns


def _ages(partitions: Sequence[Partition], generations: Column, now: float) -> Column:
    """None for None. All partitions have the same clock."""
    return [
        None if generation is None else partition.generations.age(generation, now)
        for partition, generation in zip(partitions, generations, strict=True)
    ]


def _cached_figures(partition: Partition) -> tuple[float | None, ...]:
    if partition.figures is None:
        partition.figures = compute_figures(partition)
    return partition.figures


def _cached_task_figures(partition: Partition, task: Task) -> tuple[float | None, ...]:
    if task.figures is None:
        task.figures = compute_task_figures(partition, task)
    return task.figures


def _columns(names: Sequence[str], rows: Sequence[tuple[float | None, ...]]) -> dict[str, Column]:
    columns: Iterable[Column] = zip(*rows, strict=True) if rows else [()] * len(names)
    return dict(zip(names, columns, strict=True))


def compute_figures(partition: Partition) -> tuple[float | None, ...]:
    """The figures of a partition, with the generation of the oldest row in place of its age."""
    return (
        len(partition.rows),
        partition.size_bytes,
        partition.rows.oldest_generation,
        partition.rows.newest_weight_version,
        partition.rows.weight_version,
        len(partition.groups.reserved),
        partition.rows_put_total,
        partition.entrance.drawn_rows,
        *(partition.removed[why] for why in REASONS),
        *attrgetter(*_OF_PARTITION)(partition.counters),
    )


def compute_task_figures(partition: Partition, task: Task) -> tuple[float | None, ...]:
    """The figures of a task, with a generation and a point in time in place of age and wait. The seconds by state end
    when the task entered its state; the number of that state and when it began follow.
    """
    oldest, version = oldest_untaken(partition, task)
    return (
        *task.counts(),
        task.views.ready_rows(),
        oldest,
        partition.rows.lag_of(version),
        task.views.waiting(),
        task.views.waits_since(),
        task.consumed_total,
        task.deliveries.total,
        *attrgetter(*_OF_TASK)(task.counters),
        *(task.deliveries.ended.get(how, 0) for how in get_args(How)),
        *task.clock.entered,
        task.clock.state_number,
        task.clock.since,
    )

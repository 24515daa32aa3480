"""One screen of `dataplane top`: a line for the server, then one for each task of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dataplane_client.cli._flow import PartitionFlow
from dataplane_client.cli._health import health_of
from dataplane_client.cli._status import waits_text
from dataplane_client.cli._table import plain_table
from dataplane_client.cli._words import age_text, bar_text, count_text, duration_text, rate_text, size_text
from dataplane_client.descriptions import ServerStatus, TaskStatus

Screen = Group | Text

_MB = 1e6
_PARTITION = ("partition", ">rows", ">size", ">oldest", ">rows/s in", ">MB/s in", ">MB/s out")
_TASK = ("task", ">ready", ">claimed", ">committed", ">rows/s", ">lag", ">waiting", ">longest")


def screen_of(address: str, status: ServerStatus, moved: Sequence[PartitionFlow]) -> Screen:
    budget = status.memory_budget_bytes
    bar = bar_text(status.memory_used_bytes / budget if budget else 0.0)
    waits = waits_text(status, [flow.partition for flow in moved])
    state = "draining" if status.draining else f"up {duration_text(status.uptime_s)}"
    reasons = [Text(f"! {reason}", "red") for reason in health_of(status).reasons]
    return Group(
        Text.assemble((address, "bold"), f"  {state}  memory {bar} of {size_text(budget)}  {status.rows:,} rows"),
        Text(f"waiting: {waits}"),
        *reasons,
        Text(),
        _table(moved) if moved else Text("no partitions"),
    )


def silence_of(address: str, message: str, silent_s: float) -> Screen:
    """What is shown while the server does not answer."""
    silent = f"has not answered for {age_text(silent_s)}" if silent_s >= 1 else "does not answer"
    return Text.assemble((address, "bold"), f"  {silent}; trying again\n", message)


def _table(moved: Iterable[PartitionFlow]) -> Table:
    table = plain_table(*_PARTITION, *_TASK)
    for flow in moved:
        tasks = flow.partition.tasks
        lines = [_task_cells(task, flow.consumed_rows_per_s[task.task]) for task in tasks] or [[]]
        for begin, cells in zip_longest([_partition_cells(flow)], lines, fillvalue=[""] * len(_PARTITION)):
            table.add_row(*begin, *cells)
    return table


def _partition_cells(flow: PartitionFlow) -> list[str]:
    partition = flow.partition
    rates = (rate_text(flow.put_rows_per_s), rate_text(flow.written_bytes_per_s, _MB))
    return [
        partition.partition_id,
        f"{partition.rows:,}",
        size_text(partition.size_bytes),
        age_text(partition.oldest_row_age_s),
        *rates,
        rate_text(flow.read_bytes_per_s, _MB),
    ]


def _task_cells(task: TaskStatus, consumed_per_s: float | None) -> list[str]:
    counts = (task.ready_rows, task.claimed_rows, task.consumed_rows_total)
    waits = (count_text(task.waiting_claims), age_text(task.longest_wait_s))
    lag = count_text(task.weight_version_lag)
    return [task.task, *(count_text(count) for count in counts), rate_text(consumed_per_s), lag, *waits]

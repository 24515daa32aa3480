"""A screen of `dataplane top`: a line for the server, then one for each task of each partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.console import Group
from rich.table import Table
from rich.text import Text

from dataplane_client.cli._health import health_of
from dataplane_client.cli._output import plain_table
from dataplane_client.cli._rates import PartitionRates
from dataplane_client.cli._status import waits_text
from dataplane_client.cli._text import age_text, bar_text, count_text, duration_text, rate_text, size_text
from dataplane_client.descriptions import ServerStatus, TaskStatus

Screen = Group | Text

_MB = 1e6
_PARTITION = ("partition", ">rows", ">size", ">oldest", ">rows/s in", ">MB/s in", ">MB/s out")
_TASK = ("task", ">ready", ">claimed", ">committed", ">rows/s", ">lag", ">waiting", ">longest")


def render_snapshot(address: str, status: ServerStatus, rates: Sequence[PartitionRates]) -> Screen:
    budget = status.memory_budget_bytes
    bar = bar_text(status.memory_used_bytes / budget if budget else 0.0)
    waits = waits_text(status, [entry.partition for entry in rates])
    state = "draining" if status.draining else f"up {duration_text(status.uptime_s)}"
    reasons = [Text(f"! {reason}", "red") for reason in health_of(status).reasons]
    return Group(
        Text.assemble((address, "bold"), f"  {state}  memory {bar} of {size_text(budget)}  {status.rows:,} rows"),
        Text(f"waiting: {waits}"),
        *reasons,
        Text(),
        _table(rates) if rates else Text("no partitions"),
    )


def render_silence(address: str, message: str, silent_s: float) -> Screen:
    """The screen while the server is not reachable."""
    silent = f"not reachable for {age_text(silent_s)}" if silent_s >= 1 else "not reachable"
    return Text.assemble((address, "bold"), f"  {silent}, retrying\n", message)


def _table(rates: Iterable[PartitionRates]) -> Table:
    table = plain_table(*_PARTITION, *_TASK)
    for entry in rates:
        tasks = entry.partition.tasks
        lines = [_task_cells(task, entry.consumed_rows_per_s[task.task]) for task in tasks] or [[]]
        for begin, cells in zip_longest([_partition_cells(entry)], lines, fillvalue=[""] * len(_PARTITION)):
            table.add_row(*begin, *cells)
    return table


def _partition_cells(rates: PartitionRates) -> list[str]:
    partition = rates.partition
    return [
        partition.partition_id,
        f"{partition.rows:,}",
        size_text(partition.size_bytes),
        age_text(partition.oldest_row_age_s),
        rate_text(rates.put_rows_per_s),
        rate_text(rates.written_bytes_per_s, _MB),
        rate_text(rates.read_bytes_per_s, _MB),
    ]


def _task_cells(task: TaskStatus, consumed_per_s: float | None) -> list[str]:
    counts = (task.ready_rows, task.claimed_rows, task.consumed_rows_total)
    waits = (count_text(task.waiting_claims), age_text(task.longest_wait_s))
    lag = count_text(task.weight_version_lag)
    return [task.task, *(count_text(count) for count in counts), rate_text(consumed_per_s), lag, *waits]

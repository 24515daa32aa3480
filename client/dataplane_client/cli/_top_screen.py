"""A screen of `dataplane top`: lines for the server, then one for each partition and each of its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.text import Text

from dataplane_client.cli._output import BAD
from dataplane_client.cli._rates import PartitionRates, recent_consumed_per_s
from dataplane_client.cli._status import contents_text, health_lines, node_lines, waits_text
from dataplane_client.cli._table import Labelled, Table, figure
from dataplane_client.cli._text import age_text, bar_text, count_text, duration_text, plural, rate_text, size_text
from dataplane_client.errors import DataPlaneError, PermissionDeniedError
from dataplane_client.records.descriptions import ServerStatus, TaskStatus

_MB = 1e6


def render_snapshot(address: str, status: ServerStatus, rates: Sequence[PartitionRates]) -> Group:
    budget = status.memory_budget_bytes
    bar = bar_text(status.memory_used_bytes / budget if budget else 0.0)
    state = "draining" if status.draining else f"up {duration_text(status.uptime_s)}"
    return Group(
        Labelled(address, f": {state}", style="bold"),
        *health_lines(status),
        figure("memory", f"{bar} of {size_text(budget)}, {plural(status.rows, 'row')}"),
        figure("waiting", waits_text(status, [entry.partition for entry in rates])),
        *node_lines(status),
        Text(),
        _table(rates) if rates else Text("no partitions"),
    )


def render_silence(address: str, error: DataPlaneError, silent_s: float) -> Group:
    """The screen while the server is not reachable, or refuses the token."""
    state = "refused" if isinstance(error, PermissionDeniedError) else "not reachable"
    silent = f"{state} for {age_text(silent_s)}" if silent_s >= 1 else state
    return Group(Labelled(address, f": {silent}, retrying", style="bold"), Labelled("  ! ", str(error), style=BAD))


def _table(rates: Iterable[PartitionRates]) -> Table:
    flow = (">ready", ">claimed", ">rows/s", ">rows/s in\nlast minute")
    waits = (">versions\nbehind", ">claims\nwaiting", ">longest\nwait")
    table = Table("task", *flow, *waits, spare=("longest wait", "rows/s in last minute", "versions behind"))
    for entry in rates:
        table.add_line(entry.partition.partition_id, f"  {contents_text(entry.partition)}; {_flow_text(entry)}")
        for task in entry.partition.tasks:
            table.add_row(f"  {task.task}", *_task_cells(task, entry.consumed_rows_per_s[task.task]))
    return table


def _flow_text(rates: PartitionRates) -> str:
    megabytes_in, megabytes_out = (rate_text(rate, _MB) for rate in (rates.written_bytes_per_s, rates.read_bytes_per_s))
    return f"in {rate_text(rates.put_rows_per_s)} rows/s, {megabytes_in} MB/s; out {megabytes_out} MB/s"


def _task_cells(task: TaskStatus, consumed_per_s: float | None) -> list[str]:
    counts = map(count_text, (task.ready_rows, task.claimed_rows))
    rates = map(rate_text, (consumed_per_s, recent_consumed_per_s(task)))
    waits = map(count_text, (task.weight_version_lag, task.waiting_claims))
    return [*counts, *rates, *waits, age_text(task.longest_wait_s)]

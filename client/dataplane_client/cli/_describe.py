"""`dataplane describe`: one partition, its fields and tasks, and how long tasks wait."""

from __future__ import annotations

from collections.abc import Iterable

from dataplane_client.cli._output import Format, show
from dataplane_client.cli._server import answer_of
from dataplane_client.cli._status import contents_text
from dataplane_client.cli._table import Labelled, Table, figure
from dataplane_client.cli._text import age_text, count_text, counts_text, duration_text, plural, size_text
from dataplane_client.records.descriptions import (
    FieldDescription,
    PartitionDescription,
    TaskStatus,
    partition_description,
)
from dataplane_client.records.recent import RecentFlow, RecentTask
from rl_dataplane.v1 import data_plane_pb2 as pb

_STATES = {
    "serving": "serving",
    "waiting": "waiting",
    "waiting_for_consumers": "waiting for\nconsumers",
    "idle": "idle",
}
"""States of a task, and their column headings."""


def show_partition(partition_id: str, address: str, output: Format, timeout_s: float) -> None:
    answer = answer_of(address, timeout_s, "GetPartition", pb.GetPartitionRequest(partition_id=partition_id))
    partition = partition_description(answer.partition)
    tasks = partition.tasks
    of_now = ("", _row_table(tasks), "", _wait_table(tasks))
    of_late = ("", f"{_period_text(partition)}:", "", _delivery_table(tasks), "", _time_table(tasks))
    of_tasks = (*of_now, *of_late) if tasks else ()
    show(output, partition, *_partition_lines(partition), "", _field_table(partition.fields), *of_tasks)


def _partition_lines(partition: PartitionDescription) -> list[Labelled]:
    version = partition.weight_version
    flow, period = _flow(partition), _period_text(partition)
    removed = plural(sum(flow.removed_rows.values()), "row")
    limit, waiting = partition.max_deliveries, f"{plural(partition.waiting_calls, 'call')}: {partition.waits_because}"
    modes = {
        "open": partition.open,
        "closed": partition.closed,
        "clears consumed rows": partition.clear_when_consumed,
        "digests": partition.digests,
    }
    mode = ", ".join(name for name, is_on in modes.items() if is_on)
    return [
        Labelled(partition.partition_id, "", style="bold"),
        figure("holds", contents_text(partition)),
        figure("put", f"{plural(flow.rows_put, 'row')}, {size_text(flow.written_bytes)} written {period}"),
        figure("read", f"{plural(flow.read_rows, 'row')}, {size_text(flow.read_bytes)} {period}"),
        figure("removed", f"{removed} {period}: {counts_text(flow.removed_rows)}"),
        figure("weights", "no version" if version is None else f"version {version:,}"),
        *([figure("limit", f"{plural(limit, 'delivery', 'deliveries')} of a row")] if limit else []),
        *([figure("mode", mode)] if mode else []),
        *([figure("groups", f"{partition.open_groups:,} open")] if partition.open_groups else []),
        *([figure("new rows", bounds)] if (bounds := _bounds_text(partition)) else []),
        *([figure("waiting", waiting)] if partition.waiting_calls else []),
    ]


def _period_text(partition: PartitionDescription) -> str:
    recent = partition.recent
    return "since registration" if recent is None else f"in the last {duration_text(round(recent.period_s))}"


def _flow(partition: PartitionDescription) -> RecentFlow:
    """What the partition has counted in the period; before the server knows of one, its totals."""
    return partition.recent or RecentFlow(
        0.0,
        partition.rows_put_total,
        partition.removed_rows,
        partition.written_bytes_total,
        partition.read_rows_total,
        partition.read_bytes_total,
    )


def _counts(task: TaskStatus) -> RecentTask:
    """The same of a task."""
    totals = (task.claims_total, task.delivered_rows_total, task.consumed_rows_total)
    return task.recent or RecentTask(0.0, *totals, task.ended_deliveries, task.state_seconds)


def _bounds_text(partition: PartitionDescription) -> str:
    """What bounds the rows that come; empty if nothing does."""
    flow, band = partition.flow, partition.flow.band
    budgets = [
        "" if flow.max_rows is None else plural(flow.max_rows, "row"),
        "" if flow.max_bytes is None else size_text(flow.max_bytes),
        "" if flow.max_versions is None else plural(flow.max_versions, "weight version"),
    ]
    at_most = ", ".join(budget for budget in budgets if budget)
    evicts = f" {flow.evict_first.replace('_', ' ')} first" if flow.when_full == "evict" else ""
    paces = [(task.task, task.policy.rows_per_version) for task in partition.tasks if task.policy.rows_per_version]
    bounds = [
        f"at most {at_most}, else {flow.when_full}{evicts}" if at_most else "",
        *(f"{name} takes {plural(rows, 'row')} of each weight version" for name, rows in paces),
        f"{band.samples_per_insert:g} draws a row, surplus {band.least:g} to {band.most:g}" if band else "",
    ]
    return "; ".join(bound for bound in bounds if bound)


def _field_table(fields: Iterable[FieldDescription]) -> Table:
    table = Table(
        "field", "kind", "element\ntype", "row shape", "per\ntoken", ">rows", ">size", spare=("per token", "size")
    )
    for field in fields:
        dimensions = ["*"] * (field.kind == "jagged") + [str(size) for size in field.row_shape]
        shape = f"({', '.join(dimensions)})" if field.kind in ("dense", "jagged") else ""
        per_token = "yes" if field.per_token else ""
        size = size_text(field.size_bytes)
        table.add_row(field.name, field.kind or "", field.dtype, shape, per_token, f"{field.rows:,}", size)
    return table


def _row_table(tasks: Iterable[TaskStatus]) -> Table:
    """The resident rows of each task by state."""
    table = Table("task", ">untaken", ">ready", ">claimed", ">consumed", ">delayed", ">dead", ">oldest\nuntaken")
    for task in tasks:
        counts = (task.untaken_rows, task.ready_rows, task.claimed_rows, task.consumed_rows)
        rest = (task.delayed_rows, task.dead_rows)
        table.add_row(task.task, *map(count_text, (*counts, *rest)), age_text(task.oldest_untaken_age_s))
    return table


def _delivery_table(tasks: Iterable[TaskStatus]) -> Table:
    table = Table("task", ">claims", ">rows\ndelivered", ">rows\nconsumed", "deliveries ended", sentences=True)
    for task in tasks:
        of = _counts(task)
        counts = map(count_text, (of.claims, of.delivered_rows, of.consumed_rows))
        table.add_row(task.task, *counts, counts_text(of.ended_deliveries))
    return table


def _wait_table(tasks: Iterable[TaskStatus]) -> Table:
    table = Table(
        "task", ">claims\nwaiting", ">longest\nwait", ">weight versions\nbehind", ">may be\nbehind", ">too\nstale"
    )
    for task in tasks:
        waits = (count_text(task.waiting_claims), age_text(task.longest_wait_s))
        bounds = (task.weight_version_lag, task.policy.max_staleness, task.stale_rows)
        table.add_row(task.task, *waits, *map(count_text, bounds))
    return table


def _time_table(tasks: Iterable[TaskStatus]) -> Table:
    """The share of the period that each task has spent in each state."""
    table = Table("task", ">time", *(f">{heading}" for heading in _STATES.values()))
    for task in tasks:
        seconds = _counts(task).state_seconds
        total_s = sum(seconds.values())
        shares = (seconds.get(state, 0.0) / total_s if total_s else 0.0 for state in _STATES)
        table.add_row(task.task, duration_text(total_s), *(f"{share:.0%}" for share in shares))
    return table

"""What the command `dataplane` shows to people: tables and sizes, from descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table

from dataplane_client.descriptions import (
    DeadLetter,
    PartitionDescription,
    SampleDescription,
    SampleEvent,
    SampleTask,
    TaskStatus,
)

_STATES = {
    "serving": "serving",
    "waiting_for_producers": "waits for producers",
    "waiting_for_consumers": "rows wait for it",
    "waiting_by_policy": "waits by policy",
    "idle": "idle",
}
"""States of a task and the headings of their columns."""


def partition_table(partitions: Iterable[PartitionDescription]) -> Table:
    table = _table("partition", "rows", "size", "put", "cleared", "tasks (untaken / claimed / consumed rows)")
    for partition in partitions:
        tasks = ", ".join(
            f"{task.task} {task.untaken_rows:,} / {task.claimed_rows:,} / {task.consumed_rows:,}"
            for task in partition.tasks
        )
        counts = (partition.rows, partition.rows_put_total, partition.rows_cleared_total)
        rows, put, cleared = (f"{count:,}" for count in counts)
        table.add_row(partition.partition_id, rows, size_text(partition.size_bytes), put, cleared, tasks)
    return table


def field_table(partition: PartitionDescription) -> Table:
    table = _table("field", "kind", "element type", "row shape", "per token", "rows", "size")
    for field in partition.fields:
        dimensions = ["*"] * (field.kind == "jagged") + [str(size) for size in field.row_shape]
        shape = f"({', '.join(dimensions)})" if field.kind in ("dense", "jagged") else ""
        per_token = "yes" if field.per_token else ""
        size = size_text(field.size_bytes)
        table.add_row(field.name, field.kind or "", field.dtype, shape, per_token, f"{field.rows:,}", size)
    return table


def removed_line(partition: PartitionDescription) -> str:
    """Where the rows that are gone went, and what else holds for the whole partition."""
    parts = [f"removed rows: {_counts(partition.removed_rows)}"]
    if partition.max_deliveries:
        parts.append(f"dead after {partition.max_deliveries:,} deliveries")
    if partition.open_groups:
        parts.append(f"open groups: {partition.open_groups:,}")
    return "; ".join(parts)


def task_table(tasks: Iterable[TaskStatus]) -> Table:
    resident = ("untaken", "claimed", "consumed", "delayed", "dead")
    table = _table("task", *resident, "consumed ever", "delivered", "deliveries ended", "waiting claims")
    for task in tasks:
        rows = (task.untaken_rows, task.claimed_rows, task.consumed_rows, task.delayed_rows, task.dead_rows)
        ever = (task.consumed_rows_total, task.delivered_rows_total)
        counts = (f"{count:,}" for count in (*rows, *ever))
        table.add_row(task.task, *counts, _counts(task.ended_deliveries), f"{task.waiting_claims:,}")
    return table


def time_table(tasks: Iterable[TaskStatus]) -> Table:
    """Who waits for whom: which part of its time each task has been in each state."""
    table = _table("task", "time", *_STATES.values())
    for task in tasks:
        whole = sum(task.state_seconds.values())
        parts = (task.state_seconds.get(state, 0.0) / whole if whole else 0.0 for state in _STATES)
        table.add_row(task.task, duration_text(whole), *(f"{part:.0%}" for part in parts))
    return table


def dead_letter_table(letters: Iterable[DeadLetter]) -> Table:
    table = _table("sample", "deliveries", "reason")
    for letter in letters:
        table.add_row(letter.sample_id, f"{letter.deliveries:,}", letter.reason)
    return table


def standing_lines(partition_id: str, sample_id: str, sample: SampleDescription) -> list[str]:
    """What a sample holds."""
    if not sample.resident:
        return [f"{sample_id} is not in {partition_id} any more"]
    tokens = "" if sample.sequence_length is None else f", {sample.sequence_length:,} tokens"
    lines = [f"{sample_id} is in {partition_id}: generation {sample.generation}{tokens}"]
    if sample.group_id is not None:
        hidden = ", still reserved, so no claim sees it" if sample.hidden else ""
        lines.append(f"group: {sample.group_id}{hidden}")
    lines.append(f"fields: {', '.join(sample.fields) or 'none yet'}")
    if sample.tags:
        lines.append(f"tags: {', '.join(f'{key}={value!r}' for key, value in sample.tags.items())}")
    return lines


def standing_table(tasks: Iterable[SampleTask]) -> Table:
    table = _table("task", "state", "deliveries", "claim")
    for task in tasks:
        table.add_row(task.task, task.state, f"{task.deliveries:,}", task.claim_id)
    return table


def event_table(events: Iterable[SampleEvent]) -> Table:
    table = _table("ago", "what", "who", "task", "claim", "fields", "reason")
    for event in events:
        fields = ", ".join(event.fields)
        table.add_row(_age(event.age_s), event.what, event.who, event.task, event.claim_id, fields, event.reason)
    return table


def size_text(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def duration_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration_text(seconds)


def _counts(counts: Mapping[str, int]) -> str:
    """Those that are not zero."""
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count) or "none"


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading)
    return table

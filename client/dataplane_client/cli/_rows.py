"""`dataplane sample`, `dead-letters`, `reset` and `drop`: the history of a row, rows that a task has given up, retries,
and the end of a partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from dataplane_client.cli._output import Format, confirm, fail, print_text, show
from dataplane_client.cli._server import answer_of, server_or_exit
from dataplane_client.cli._table import Table
from dataplane_client.cli._text import age_text, plural, tags_text
from dataplane_client.records.descriptions import (
    DeadLetter,
    SampleDescription,
    SampleEvent,
    SampleTask,
    dead_letter,
    sample_description,
)
from rl_dataplane.v1 import data_plane_pb2 as pb


def show_sample(partition_id: str, sample_id: str, address: str, output: Format, timeout_s: float) -> None:
    with server_or_exit(address, timeout_s) as server:
        request = pb.GetSampleRequest(partition_id=partition_id, sample_id=sample_id)
        described = sample_description(server.call("GetSample", request))
    if not described.resident and not described.events:
        fail(f"partition {partition_id!r} has no sample {sample_id!r}, and the server has no history of it")
    tasks = [_task_table(described.tasks)] if described.tasks else []
    events = _event_table(described.events) if described.events else "no history"
    show(output, described, *_sample_lines(partition_id, sample_id, described), *tasks, events)


def show_dead_letters(partition_id: str, task: str, address: str, output: Format, timeout_s: float) -> None:
    letters = _dead_letters(partition_id, task, address, timeout_s)
    show(output, letters, _dead_letter_table(letters) if letters else "no dead letters")


def reset_dead(partition_id: str, task: str, address: str, timeout_s: float) -> None:
    """Reset the dead letters, at most 65,536."""
    letters = _dead_letters(partition_id, task, address, timeout_s)
    if letters:
        reset_task(partition_id, task, [letter.sample_id for letter in letters], address, timeout_s)
    else:
        print_text("no dead letters")


def _dead_letters(partition_id: str, task: str, address: str, timeout_s: float) -> list[DeadLetter]:
    request = pb.ListDeadLettersRequest(partition_id=partition_id, task=task)
    return [*map(dead_letter, answer_of(address, timeout_s, "ListDeadLetters", request).dead_letters)]


def reset_samples(partition_id: str, task: str, sample_ids: Sequence[str], address: str, timeout_s: float) -> None:
    """Reset samples. One that does not exist is an error here, and none is reset: it is mistyped."""
    with server_or_exit(address, timeout_s) as server:
        for sample_id in sample_ids:
            request = pb.GetSampleRequest(partition_id=partition_id, sample_id=sample_id)
            if not server.call("GetSample", request).resident:
                fail(f"partition {partition_id!r} has no sample {sample_id!r}; nothing was reset")
    reset_task(partition_id, task, sample_ids, address, timeout_s)


def reset_task(partition_id: str, task: str, sample_ids: Sequence[str], address: str, timeout_s: float) -> None:
    """Reset samples, or the whole task if sample_ids is empty."""
    request = pb.ResetTaskRequest(
        request_id=uuid.uuid4().hex,
        partition_id=partition_id,
        task=task,
        sample_ids=sample_ids,
        whole_task=not sample_ids,
    )
    done = answer_of(address, timeout_s, "ResetTask", request)
    print_text(f"rows reset: {done.reset_rows:,}, claims fenced: {done.fenced_claims:,}")


def set_weight_version(
    partition_id: str, version: int, retire_below: int | None, address: str, timeout_s: float
) -> None:
    request = pb.SetWeightVersionRequest(
        request_id=uuid.uuid4().hex, partition_id=partition_id, version=version, retire_below=retire_below
    )
    done = answer_of(address, timeout_s, "SetWeightVersion", request)
    print_text(f"rows retired: {done.retired_rows:,}, groups aborted: {done.aborted_groups:,}")


def drop_partition(partition_id: str, address: str, timeout_s: float, *, sure: bool) -> None:
    """Say what is lost, ask unless sure, and drop. A partition that does not exist is an error here: it is mistyped."""
    request = pb.DropPartitionRequest(request_id=uuid.uuid4().hex, partition_id=partition_id)
    with server_or_exit(address, timeout_s) as server:
        there = server.call("GetPartition", pb.GetPartitionRequest(partition_id=partition_id)).partition
        if not sure:
            confirm(f"Remove partition {partition_id} and its {plural(there.rows, 'row')}?", "drop")
        done = server.call("DropPartition", request)
    print_text(f"rows removed: {done.dropped_rows:,}")


def _sample_lines(partition_id: str, sample_id: str, sample: SampleDescription) -> list[str]:
    if not sample.resident:
        return [f"sample {sample_id} is no longer in partition {partition_id}"]
    tokens = "" if sample.sequence_length is None else f", {sample.sequence_length:,} tokens"
    lines = [f"sample {sample_id} in partition {partition_id}: generation {sample.generation}{tokens}"]
    if sample.group_id is not None:
        hidden = " (still reserved, so claims do not see it)" if sample.hidden else ""
        lines.append(f"group: {sample.group_id}{hidden}")
    lines.append(f"fields: {', '.join(sample.fields) or 'none yet'}")
    if sample.tags:
        lines.append(f"tags: {tags_text(sample.tags)}")
    return lines


def _task_table(tasks: Iterable[SampleTask]) -> Table:
    table = Table("task", "state", ">deliveries", "claim", "shard")
    for task in tasks:
        shard = "" if task.step is None else f"step {task.step}, rank {task.dp_rank}"
        table.add_row(task.task, task.state, f"{task.deliveries:,}", task.claim_id, shard)
    return table


def _event_table(events: Iterable[SampleEvent]) -> Table:
    headings = ("age", "event", "client", "task", "claim", "fields", "reason")
    table = Table(*headings, spare=("fields", "claim"), sentences=True)
    for event in events:
        fields = ", ".join(event.fields)
        table.add_row(age_text(event.age_s), event.what, event.who, event.task, event.claim_id, fields, event.reason)
    return table


def _dead_letter_table(letters: Iterable[DeadLetter]) -> Table:
    table = Table("sample", ">deliveries", "reason", sentences=True)
    for letter in letters:
        table.add_row(letter.sample_id, f"{letter.deliveries:,}", letter.reason)
    return table

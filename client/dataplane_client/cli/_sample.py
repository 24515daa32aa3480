"""`dataplane sample`: what became of one sample, also of one that is gone."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from dataplane_client.cli._options import Format
from dataplane_client.cli._output import fail, print_json, print_text
from dataplane_client.cli._server import asked
from dataplane_client.cli._table import plain_table
from dataplane_client.cli._words import age_text
from dataplane_client.descriptions import SampleDescription, SampleEvent, SampleTask, sample_description
from rl_dataplane.v1 import data_plane_pb2 as pb


def show_sample(partition_id: str, sample_id: str, address: str, output: Format, timeout_s: float) -> None:
    with asked(address, timeout_s) as server:
        request = pb.GetSampleRequest(partition_id=partition_id, sample_id=sample_id)
        described = sample_description(server.ask("GetSample", request))
    if not described.resident and not described.events:
        fail(f"partition {partition_id!r} has no sample {sample_id!r}, and the server remembers none of that id")
    if output == "json":
        print_json(described)
        return
    print_text(*_standing_lines(partition_id, sample_id, described))
    if described.tasks:
        print_text(_standing_table(described.tasks))
    events = described.events
    print_text(_event_table(events) if events else "the server does not remember what happened to it")


def _standing_lines(partition_id: str, sample_id: str, sample: SampleDescription) -> list[str]:
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


def _standing_table(tasks: Iterable[SampleTask]) -> Table:
    table = plain_table("task", "state", ">deliveries", "claim")
    for task in tasks:
        table.add_row(task.task, task.state, f"{task.deliveries:,}", task.claim_id)
    return table


def _event_table(events: Iterable[SampleEvent]) -> Table:
    table = plain_table("ago", "what", "who", "task", "claim", "fields", "reason")
    for event in events:
        fields = ", ".join(event.fields)
        table.add_row(age_text(event.age_s), event.what, event.who, event.task, event.claim_id, fields, event.reason)
    return table

"""`dataplane dead-letters` and `dataplane reset`: rows that a task has given up, and how it gets them again."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from rich.table import Table

from dataplane_client.cli._options import Format
from dataplane_client.cli._output import print_json, print_text
from dataplane_client.cli._server import asked
from dataplane_client.cli._table import plain_table
from dataplane_client.descriptions import DeadLetter, dead_letter
from rl_dataplane.v1 import data_plane_pb2 as pb


def show_dead_letters(partition_id: str, task: str, address: str, output: Format, timeout_s: float) -> None:
    with asked(address, timeout_s) as server:
        answer = server.ask("ListDeadLetters", pb.ListDeadLettersRequest(partition_id=partition_id, task=task))
    letters = [dead_letter(message) for message in answer.dead_letters]
    if output == "json":
        print_json(letters)
        return
    print_text(_dead_letter_table(letters) if letters else "no dead letters")


def reset_task(partition_id: str, task: str, sample_ids: Sequence[str], address: str, timeout_s: float) -> None:
    """Give samples, or all of them where none is named, back to the task."""
    request = pb.ResetTaskRequest(
        request_id=uuid.uuid4().hex,
        partition_id=partition_id,
        task=task,
        sample_ids=sample_ids,
        whole_task=not sample_ids,
    )
    with asked(address, timeout_s) as server:
        done = server.ask("ResetTask", request)
    print_text(f"rows reset: {done.reset_rows:,}, claims fenced: {done.fenced_claims:,}")


def _dead_letter_table(letters: Iterable[DeadLetter]) -> Table:
    table = plain_table("sample", ">deliveries", "reason")
    for letter in letters:
        table.add_row(letter.sample_id, f"{letter.deliveries:,}", letter.reason)
    return table

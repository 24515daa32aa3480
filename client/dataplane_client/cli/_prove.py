"""`dataplane prove`: what the rows of a step consist of."""

from __future__ import annotations

from collections.abc import Iterator

from dataplane_client.cli._output import Format, fail, show
from dataplane_client.cli._server import Server, server_or_exit
from dataplane_client.cli._table import Table
from dataplane_client.cli._text import plural
from dataplane_client.records.descriptions import partition_description, sample_description
from dataplane_client.records.listings import sample_page
from dataplane_client.records.provenance import RowProvenance, as_json, digest_of_rows, row_provenance
from rl_dataplane.v1 import data_plane_pb2 as pb

_PAGE_ROWS = 1000


def prove(partition_id: str, step: int, task: str | None, address: str, output: Format, timeout_s: float) -> None:
    with server_or_exit(address, timeout_s) as server:
        of_task = task or _only_task(server, partition_id)
        rows = [row for row in _rows(server, partition_id, of_task) if row.step == step]
    if not rows:
        fail(f"no row of partition {partition_id!r} is in step {step} of task {of_task!r} that the server remembers")
    heading = f"step {step} of task {of_task}: {plural(len(rows), 'row')}, digest {digest_of_rows(rows)}"
    show(output, as_json(rows), heading, "", _table(rows))


def _only_task(server: Server, partition_id: str) -> str:
    answer = server.call("GetPartition", pb.GetPartitionRequest(partition_id=partition_id))
    names = partition_description(answer.partition).task_names
    if len(names) != 1:
        fail(f"partition {partition_id!r} has the tasks {', '.join(names) or 'none'}: name one with --task")
    return names[0]


def _rows(server: Server, partition_id: str, task: str) -> Iterator[RowProvenance]:
    """All rows that the task has taken."""
    taken = ["claimed", "consumed", "delayed"]
    request = pb.ListSamplesRequest(partition_id=partition_id, task=task, states=taken, page_size=_PAGE_ROWS)
    more = True
    while more:
        page = sample_page(server.call("ListSamples", request), partition_id, task)
        for sample_id in page.meta.sample_ids:
            asked = pb.GetSampleRequest(partition_id=partition_id, sample_id=sample_id)
            described = sample_description(server.call("GetSample", asked))
            if described.resident:
                yield row_provenance(sample_id, described, task)
        request.page_token, more = page.next_page or 0, page.next_page is not None


def _table(rows: list[RowProvenance]) -> Table:
    table = Table("sample", ">rank", ">weights", "field", "digest", "producer", ">deliveries", "state", "committed by")
    for row in sorted(rows, key=lambda row: (row.dp_rank or 0, row.generation or 0)):
        rank, version = str(row.dp_rank), "" if row.weight_version is None else str(row.weight_version)
        about = (f"{row.deliveries:,}", row.state, row.committed_by)
        for number, (name, value) in enumerate(row.values.items()):
            first = (row.sample_id, rank, version) if not number else ("", "", "")
            table.add_row(*first, name, value.digest, value.producer, *(about if not number else ("", "", "")))
    return table

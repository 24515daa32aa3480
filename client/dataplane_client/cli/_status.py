"""`dataplane status`: the server and its partitions, with its health as the exit code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dataplane_client.cli._output import BAD, GOOD, Format, fail, print_json, print_text
from dataplane_client.cli._rates import recent_consumed_per_s
from dataplane_client.cli._server import Server, open_server, server_or_exit
from dataplane_client.cli._table import Labelled, Table, figure
from dataplane_client.cli._text import (
    age_text,
    bar_text,
    count_text,
    duration_text,
    plural,
    rate_text,
    server_text,
    size_text,
)
from dataplane_client.errors import DataPlaneError, DeadlineError, UnavailableError
from dataplane_client.records.descriptions import (
    MemoryHolder,
    NodeDescription,
    PartitionDescription,
    ServerStatus,
    TaskStatus,
    partition_description,
    server_status,
)
from rl_dataplane.v1 import data_plane_pb2 as pb

if TYPE_CHECKING:
    from rich.text import Text

UNHEALTHY = 3
_LOOK_S = 0.2


def await_health(address: str, wait_s: float, timeout_s: float) -> None:
    """Return when the server is healthy, has refused to say so, or wait_s seconds are over."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and not _is_decided(address, timeout_s):
        time.sleep(min(_LOOK_S, max(0.0, deadline - time.monotonic())))


def _is_decided(address: str, timeout_s: float) -> bool:
    """Whether waiting is of no use. Each look has a connection of its own: gRPC is slow to try a broken one again."""
    with open_server(address, timeout_s) as server:
        try:
            return not server_status(server.call("GetServerStatus", pb.GetServerStatusRequest())).unhealthy
        except DataPlaneError as error:
            return not isinstance(error, (UnavailableError, DeadlineError))


def show_status(address: str, output: Format, timeout_s: float) -> int:
    """Show the status and return the exit code, 0 or UNHEALTHY. Exits with 1 if the server is not reachable."""
    with server_or_exit(address, timeout_s) as server:
        answer = _status_of(server)
        listed = server.partitions()
    status, shares_memory = server_status(answer), answer.HasField("shared_memory")
    partitions = [partition_description(message) for message in listed]
    if output == "json":
        document = {"healthy": not status.unhealthy, "reasons": status.unhealthy, "server": status}
        print_json({**document, "shares_memory": shares_memory, "partitions": partitions})
    else:
        lines = [*health_lines(status), *_server_lines(status, partitions, shares_memory)]
        print_text(_heading(address, status), *lines, "")
        print_text(_partition_table(partitions) if partitions else "no partitions")
    return UNHEALTHY if status.unhealthy else 0


def _status_of(server: Server) -> pb.GetServerStatusResponse:
    try:
        answer: pb.GetServerStatusResponse = server.call("GetServerStatus", pb.GetServerStatusRequest())
    except UnavailableError as error:
        if error.reason != "DRAINING":
            raise
        fail(str(error), UNHEALTHY)
    return answer


def _heading(address: str, status: ServerStatus) -> Text:
    from rich.text import Text

    health_text = ("not healthy", BAD) if status.unhealthy else ("healthy", GOOD)
    return Text.assemble(
        (server_text(address), "bold"), ": ", "draining" if status.draining else "serving", ", ", health_text
    )


def health_lines(status: ServerStatus) -> list[Labelled]:
    """Why the server is not healthy."""
    return [Labelled("  ! ", reason, style=BAD) for reason in status.unhealthy]


def _server_lines(status: ServerStatus, partitions: Iterable[PartitionDescription], shares: bool) -> Iterator[Labelled]:
    budget = status.memory_budget_bytes
    bar = bar_text(status.memory_used_bytes / budget if budget else 0.0)
    used = f"{size_text(status.memory_used_bytes)} of {size_text(budget)}"
    free = f", largest free range {size_text(status.largest_free_bytes)}" if status.largest_free_bytes else ""
    most = f" of at most {status.max_rows:,}" if status.max_rows else ""
    yield figure("version", f"{status.version}, up {duration_text(status.uptime_s)}")
    yield figure("memory", f"{bar}  {used}{free}")
    if status.holders:
        yield figure("held", "; ".join(map(_holder_text, status.holders)))
    yield figure("rows", f"{status.rows:,}{most}")
    yield figure("waiting", waits_text(status, partitions))
    yield figure("sessions", f"{status.sessions:,}")
    yield from node_lines(status)
    shared = "of its node" if status.nodes else "on its host"
    in_memory = shares or status.nodes
    yield figure("values", f"through shared memory {shared}, otherwise over gRPC" if in_memory else "over gRPC")


def node_lines(status: ServerStatus) -> Iterator[Labelled]:
    """A line for each node of a cluster."""
    for node in status.nodes:
        state = _node_state(node)
        fetched = (
            f"{size_text(node.fetched_bytes)} of other nodes fetched, {size_text(node.cache_hit_bytes)} read again"
        )
        used = f"{size_text(node.memory_used_bytes)} used, {plural(node.clients, 'client')}"
        yield figure(f"node {node.number}", f"{state}: {used}; {fetched}")


def _node_state(node: NodeDescription) -> str:
    if node.ended:
        return f"gone, its rows are on {_numbered(node.mirrors)}"
    state = f"up on {node.host}" if node.up else "does not answer"
    return f"{state}, mirrored on {_numbered(node.mirrors)}" if node.mirrors else state


def _numbered(nodes: Sequence[int]) -> str:
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"


def _holder_text(holder: MemoryHolder) -> str:
    """Memory that a client holds: puts under way and cleared rows first, leases of resident rows last."""
    sizes = {"lent": holder.lent_bytes, "of cleared rows": holder.owed_bytes, "leased": holder.leased_bytes}
    return f"{holder.client_name} " + ", ".join(f"{size_text(size)} {what}" for what, size in sizes.items() if size)


def waits_text(status: ServerStatus, partitions: Iterable[PartitionDescription]) -> str:
    """The numbers of waiting claims, puts, and calls at the entrances of partitions, and their longest waits."""
    partitions = list(partitions)
    waits = (task.longest_wait_s for partition in partitions for task in partition.tasks)
    longest_claim_s = max((wait for wait in waits if wait is not None), default=None)
    claims = _waiting(status.waiting_claims, "claim", longest_claim_s)
    at_entrances = sum(partition.waiting_calls for partition in partitions)
    puts = _waiting(status.waiting_puts, "put", status.longest_put_wait_s)
    return f"{claims}, {puts}" + (f", {plural(at_entrances, 'call')} for room in a partition" if at_entrances else "")


def _waiting(count: int, noun: str, longest_s: float | None) -> str:
    longest = "" if longest_s is None or not count else f" (longest {age_text(longest_s)})"
    return f"{plural(count, noun)}{longest}"


def _partition_table(partitions: Iterable[PartitionDescription]) -> Table:
    """A line for each partition, and under it one for each of its tasks."""
    rows = (">untaken", ">ready", ">claimed", ">rows/s in\nlast minute")
    delays = (">versions\nbehind", ">claims\nwaiting", ">longest\nwait")
    table = Table("task", *rows, *delays, spare=("longest wait", "rows/s in last minute", "versions behind"))
    for partition in partitions:
        waits = f", {plural(count, 'call')} for room" if (count := partition.waiting_calls) else ""
        table.add_line(partition.partition_id, f"  {contents_text(partition)}{waits}")
        for task in partition.tasks:
            table.add_row(f"  {task.task}", *_task_cells(task))
    return table


def contents_text(partition: PartitionDescription) -> str:
    oldest = "" if partition.oldest_row_age_s is None else f", oldest {age_text(partition.oldest_row_age_s)}"
    return f"{plural(partition.rows, 'row')}, {size_text(partition.size_bytes)}{oldest}"


def _task_cells(task: TaskStatus) -> list[str]:
    counts = map(count_text, (task.untaken_rows, task.ready_rows, task.claimed_rows))
    waits = map(count_text, (task.weight_version_lag, task.waiting_claims))
    return [*counts, rate_text(recent_consumed_per_s(task)), *waits, age_text(task.longest_wait_s)]

"""The command `dataplane`: what a server holds, for people (tables) and programs (JSON). Loads no torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from dataplane_client._sync.transport import Transport
from dataplane_client.descriptions import (
    PartitionDescription,
    ServerStatus,
    TaskStatus,
    partition_description,
    server_status,
)
from dataplane_client.errors import DataPlaneError
from dataplane_client.options import ClientOptions
from rl_dataplane.v1 import data_plane_pb2 as pb

_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

Address = Annotated[str, typer.Option("--server", "-s", envvar="DATAPLANE_SERVER", help="unix:///path or host:port.")]
Output = Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="table or json.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the server.")]
T = TypeVar("T")


def main() -> None:
    _app()


@_app.command()
def status(server: Address = "127.0.0.1:50051", output: Output = "table", timeout: Timeout = 5.0) -> None:
    """Show the server and its partitions. Exit code 1 when the server cannot be reached."""

    def ask(transport: Transport) -> tuple[ServerStatus, list[PartitionDescription]]:
        whole = transport.unary("GetServerStatus", pb.GetServerStatusRequest(), timeout)
        listed = transport.unary("ListPartitions", pb.ListPartitionsRequest(), timeout)
        return server_status(whole), [partition_description(message) for message in listed.partitions]

    whole, partitions = _asked(server, timeout, ask)
    if output == "json":
        _print_json({"server": whole, "partitions": partitions})
        return
    console = Console()
    console.print(
        f"[bold]{server}[/bold]  version {whole.version}, up {_duration(whole.uptime_s)}, {whole.rows:,} rows, "
        f"{_size(whole.memory_used_bytes)} of {_size(whole.memory_budget_bytes)} used, "
        f"{whole.waiting_claims} claims and {whole.waiting_puts} puts wait",
        highlight=False,
    )
    console.print(_partition_table(partitions) if partitions else "no partitions")


@_app.command()
def describe(
    partition: str, server: Address = "127.0.0.1:50051", output: Output = "table", timeout: Timeout = 5.0
) -> None:
    """Show the fields and tasks of a partition. Exit code 1 when there is none."""

    def ask(transport: Transport) -> PartitionDescription:
        request = pb.GetPartitionRequest(partition_id=partition)
        return partition_description(transport.unary("GetPartition", request, timeout).partition)

    described = _asked(server, timeout, ask)
    if output == "json":
        _print_json(described)
        return
    console = Console()
    console.print(_partition_table([described]))
    console.print(_field_table(described))
    console.print(_task_table(described.tasks))


def _asked(server: str, timeout_s: float, ask: Callable[[Transport], T]) -> T:
    try:
        transport = Transport(server, ClientOptions(timeout_s=timeout_s))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        return ask(transport)
    except DataPlaneError as error:
        typer.echo(f"dataplane: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        transport.close()


def _partition_table(partitions: list[PartitionDescription]) -> Table:
    table = _table("partition", "rows", "size", "put", "cleared", "tasks (untaken / claimed / consumed rows)")
    for partition in partitions:
        tasks = ", ".join(
            f"{task.task} {task.untaken_rows:,} / {task.claimed_rows:,} / {task.consumed_rows:,}"
            for task in partition.tasks
        )
        counts = (partition.rows, partition.rows_put_total, partition.rows_cleared_total)
        rows, put, cleared = (f"{count:,}" for count in counts)
        table.add_row(partition.partition_id, rows, _size(partition.size_bytes), put, cleared, tasks)
    return table


def _field_table(partition: PartitionDescription) -> Table:
    table = _table("field", "kind", "element type", "row shape", "per token", "rows", "size")
    for field in partition.fields:
        dimensions = ["*"] * (field.kind == "jagged") + [str(size) for size in field.row_shape]
        shape = f"({', '.join(dimensions)})" if field.kind in ("dense", "jagged") else ""
        per_token = "yes" if field.per_token else ""
        table.add_row(
            field.name, field.kind or "", field.dtype, shape, per_token, f"{field.rows:,}", _size(field.size_bytes)
        )
    return table


def _task_table(tasks: tuple[TaskStatus, ...]) -> Table:
    table = _table("task", "untaken", "claimed", "consumed", "consumed ever", "waiting claims")
    for task in tasks:
        counts = (task.untaken_rows, task.claimed_rows, task.consumed_rows, task.consumed_rows_total)
        table.add_row(task.task, *(f"{count:,}" for count in counts), f"{task.waiting_claims:,}")
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading)
    return table


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, default=dataclasses.asdict, indent=2))


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"

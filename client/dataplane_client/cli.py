"""The command `dataplane`: what a server holds, for people (tables) and programs (JSON). Loads no torch."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable
from typing import Annotated, Literal, NoReturn, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from dataplane_client._cli_tables import (
    dead_letter_table,
    duration_text,
    event_table,
    field_table,
    partition_table,
    removed_line,
    size_text,
    standing_lines,
    standing_table,
    task_table,
    time_table,
)
from dataplane_client._sync.transport import Transport
from dataplane_client.descriptions import (
    DeadLetter,
    PartitionDescription,
    SampleDescription,
    ServerStatus,
    dead_letter,
    partition_description,
    sample_description,
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

_SERVER = "127.0.0.1:50051"
_TIMEOUT_S = 5.0


def main() -> None:
    _app()


@_app.command()
def status(server: Address = _SERVER, output: Output = "table", timeout: Timeout = _TIMEOUT_S) -> None:
    """Show the server and its partitions. Exit code 1 when the server cannot be reached."""

    def ask(transport: Transport) -> tuple[ServerStatus, list[PartitionDescription]]:
        whole = transport.unary("GetServerStatus", pb.GetServerStatusRequest(), timeout)
        listed = transport.unary("ListPartitions", pb.ListPartitionsRequest(), timeout)
        return server_status(whole), [partition_description(message) for message in listed.partitions]

    whole, partitions = _asked(server, timeout, ask)
    if output == "json":
        _print_json({"server": whole, "partitions": partitions})
        return
    line = (
        f"  version {whole.version}, up {duration_text(whole.uptime_s)}, {whole.rows:,} rows, "
        f"{size_text(whole.memory_used_bytes)} of {size_text(whole.memory_budget_bytes)} used, "
        f"{whole.waiting_claims} claims and {whole.waiting_puts} puts wait, {whole.sessions:,} sessions"
    )
    _print(Text.assemble((server, "bold"), line), partition_table(partitions) if partitions else "no partitions")


@_app.command()
def describe(
    partition: str, server: Address = _SERVER, output: Output = "table", timeout: Timeout = _TIMEOUT_S
) -> None:
    """Show the fields and tasks of a partition, and who waits for whom. Exit code 1 when there is none."""

    def ask(transport: Transport) -> PartitionDescription:
        request = pb.GetPartitionRequest(partition_id=partition)
        return partition_description(transport.unary("GetPartition", request, timeout).partition)

    described = _asked(server, timeout, ask)
    if output == "json":
        _print_json(described)
        return
    _print(partition_table([described]), removed_line(described), field_table(described))
    _print(task_table(described.tasks), time_table(described.tasks))


@_app.command()
def sample(
    partition: str,
    sample_id: Annotated[str, typer.Argument(metavar="SAMPLE")],
    server: Address = _SERVER,
    output: Output = "table",
    timeout: Timeout = _TIMEOUT_S,
) -> None:
    """Tell the story of a sample, also of one that is gone. Exit code 1 when the server knows of none."""

    def ask(transport: Transport) -> SampleDescription:
        request = pb.GetSampleRequest(partition_id=partition, sample_id=sample_id)
        return sample_description(transport.unary("GetSample", request, timeout))

    described = _asked(server, timeout, ask)
    if not described.resident and not described.events:
        _fail(f"partition {partition!r} has no sample {sample_id!r}, and the server remembers none of that id")
    if output == "json":
        _print_json(described)
        return
    _print(*standing_lines(partition, sample_id, described))
    if described.tasks:
        _print(standing_table(described.tasks))
    _print(event_table(described.events) if described.events else "the server does not remember what happened to it")


@_app.command()
def dead_letters(
    partition: str,
    task: str,
    server: Address = _SERVER,
    output: Output = "table",
    timeout: Timeout = _TIMEOUT_S,
) -> None:
    """List the rows that a task has given up: delivered too often, and never committed."""

    def ask(transport: Transport) -> list[DeadLetter]:
        request = pb.ListDeadLettersRequest(partition_id=partition, task=task)
        return [dead_letter(message) for message in transport.unary("ListDeadLetters", request, timeout).dead_letters]

    letters = _asked(server, timeout, ask)
    if output == "json":
        _print_json(letters)
        return
    _print(dead_letter_table(letters) if letters else "no dead letters")


@_app.command()
def reset(
    partition: str,
    task: str,
    sample_ids: Annotated[list[str] | None, typer.Argument(metavar="SAMPLE")] = None,
    whole_task: Annotated[bool, typer.Option("--all", help="All rows of the partition.")] = False,
    server: Address = _SERVER,
    timeout: Timeout = _TIMEOUT_S,
) -> None:
    """Give rows back to a task as if it had never taken them, dead ones included; claims that hold any are fenced."""
    if bool(sample_ids) == whole_task:
        raise typer.BadParameter("name the samples to reset, or all of them with --all")
    request = pb.ResetTaskRequest(
        request_id=uuid.uuid4().hex, partition_id=partition, task=task, sample_ids=sample_ids, whole_task=whole_task
    )
    done = _asked(server, timeout, lambda transport: transport.unary("ResetTask", request, timeout))
    _print(f"rows reset: {done.reset_rows:,}, claims fenced: {done.fenced_claims:,}")


def _asked(server: str, timeout_s: float, ask: Callable[[Transport], T]) -> T:
    try:
        transport = Transport(server, ClientOptions(timeout_s=timeout_s))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        return ask(transport)
    except DataPlaneError as error:
        _fail(str(error))
    finally:
        transport.close()


def _fail(message: str) -> NoReturn:
    typer.echo(f"dataplane: {message}", err=True)
    raise typer.Exit(1) from None


def _print(*parts: RenderableType) -> None:
    console = Console(markup=False, highlight=False)
    for part in parts:
        console.print(part)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, default=dataclasses.asdict, indent=2))

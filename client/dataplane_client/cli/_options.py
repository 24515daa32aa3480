"""Flags and arguments that several commands share, and the shell's completion of partition and task names.

--server is a flag of `dataplane` and of each command, so it may come before the command's name or after it.

Completion asks the running server. Without a quick answer it offers no names and prints nothing, because the user has
not run a command yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dataplane_client.cli._output import Format

if TYPE_CHECKING:
    from rl_dataplane.v1 import data_plane_pb2 as pb

_COMPLETION_TIMEOUT_S = 0.5


def _partition_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return [partition.partition_id for partition in _partitions(ctx) if partition.partition_id.startswith(incomplete)]


def _task_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Tasks of the partition that precedes them on the command line."""
    chosen = [partition for partition in _partitions(ctx) if partition.partition_id == ctx.params.get("partition")]
    return [task.task for partition in chosen for task in partition.tasks if task.task.startswith(incomplete)]


def _partitions(ctx: typer.Context) -> list[pb.Partition]:
    from dataplane_client.cli._server import Server
    from dataplane_client.errors import DataPlaneError

    try:
        with Server(_chosen_server(ctx, ctx.params.get("server")), _COMPLETION_TIMEOUT_S) as server:
            return server.partitions()
    except (DataPlaneError, ValueError):
        return []


def _chosen_server(ctx: typer.Context, address: str | None) -> str:
    """The address given after the command's name, else that of `dataplane` itself."""
    if address or ctx.parent is None:
        return address or SERVER
    return str(ctx.parent.params["server"])


def _a_number(given: float | None) -> float | None:
    """Refuse NaN, which passes every check of a range: such a wait would never begin, or never end."""
    if given is not None and not given >= 0:
        raise typer.BadParameter("nan is not a number of seconds")
    return given


def seconds_flag(*names: str, least: float, most: float | None = None, text: str) -> Any:
    """A flag that takes seconds."""
    return typer.Option(*names, min=least, max=most, metavar="SECONDS", callback=_a_number, help=text)


SERVER = "127.0.0.1:50051"
TIMEOUT_S = 5.0

_HELP = "Server address: unix:///path or host:port."

AnyAddress = Annotated[str, typer.Option("--server", "-s", envvar="DATAPLANE_SERVER", metavar="ADDRESS", help=_HELP)]
"""The flag of `dataplane` itself."""
Address = Annotated[
    str,
    typer.Option("--server", "-s", metavar="ADDRESS", callback=_chosen_server, show_default=False, help=_HELP),
]
FileFormat = Literal["jsonl", "parquet"]
Output = Annotated[Format, typer.Option("--output", "-o", help="Print tables or JSON.")]
Timeout = Annotated[float, seconds_flag("--timeout", least=0.001, most=3600.0, text="Longest wait for an answer.")]
Partition = Annotated[str, typer.Argument(metavar="PARTITION", autocompletion=_partition_names)]
Task = Annotated[str, typer.Argument(metavar="TASK", autocompletion=_task_names)]
AnyPartition = Annotated[str | None, typer.Argument(metavar="PARTITION", autocompletion=_partition_names)]
Where = Annotated[
    str | None, typer.Option("--where", metavar="FILTER", help='Only rows that fit, as "std > 0 and age_s < 60".')
]
Fields = Annotated[list[str] | None, typer.Option("--field", metavar="FIELD", help="Only this field. Repeatable.")]
AnyTask = Annotated[str | None, typer.Argument(metavar="TASK", autocompletion=_task_names)]

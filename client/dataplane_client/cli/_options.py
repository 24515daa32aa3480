"""Flags and arguments that several commands share, and the shell's completion of partition and task names.

Completion asks the running server. Without a quick answer it offers no names and prints nothing, because the user has
not run a command yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

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
    from rl_dataplane.v1 import data_plane_pb2 as pb

    try:
        with Server(ctx.params["server"], _COMPLETION_TIMEOUT_S) as server:
            return list(server.call("ListPartitions", pb.ListPartitionsRequest()).partitions)
    except (DataPlaneError, ValueError):
        return []


Address = Annotated[
    str,
    typer.Option("--server", "-s", envvar="DATAPLANE_SERVER", help="Server address: unix:///path or host:port."),
]
Format = Literal["table", "json"]
Output = Annotated[Format, typer.Option("--output", "-o", help="Output format.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, max=3600.0, help="Seconds to wait for a response.")]
Partition = Annotated[str, typer.Argument(autocompletion=_partition_names)]
Task = Annotated[str, typer.Argument(autocompletion=_task_names)]

SERVER = "127.0.0.1:50051"
TIMEOUT_S = 5.0

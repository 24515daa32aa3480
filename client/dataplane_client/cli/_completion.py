"""Names that the shell offers when somebody presses the tab key: partitions and tasks of the running server.

Whoever presses it has asked for nothing that could fail: without a quick answer there are no names, and no message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rl_dataplane.v1 import data_plane_pb2 as pb

_TIMEOUT_S = 0.5


def partition_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Partitions whose names begin so."""
    return [partition.partition_id for partition in _partitions(ctx) if partition.partition_id.startswith(incomplete)]


def task_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Tasks, of the partition that stands before them, whose names begin so."""
    chosen = [partition for partition in _partitions(ctx) if partition.partition_id == ctx.params.get("partition")]
    return [task.task for partition in chosen for task in partition.tasks if task.task.startswith(incomplete)]


def _partitions(ctx: typer.Context) -> list[pb.Partition]:
    from dataplane_client.cli._server import Server
    from dataplane_client.errors import DataPlaneError
    from rl_dataplane.v1 import data_plane_pb2 as pb

    try:
        with Server(ctx.params["server"], _TIMEOUT_S) as server:
            return list(server.ask("ListPartitions", pb.ListPartitionsRequest()).partitions)
    except (DataPlaneError, ValueError):
        return []

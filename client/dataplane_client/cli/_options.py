"""The flags and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dataplane_client.cli._completion import partition_names, task_names

Address = Annotated[str, typer.Option("--server", "-s", envvar="DATAPLANE_SERVER", help="unix:///path or host:port.")]
Format = Literal["table", "json"]
Output = Annotated[Format, typer.Option("--output", "-o", help="For people or for programs.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, max=3600.0, help="Seconds to wait for an answer.")]
Partition = Annotated[str, typer.Argument(autocompletion=partition_names)]
Task = Annotated[str, typer.Argument(autocompletion=task_names)]

SERVER = "127.0.0.1:50051"
TIMEOUT_S = 5.0

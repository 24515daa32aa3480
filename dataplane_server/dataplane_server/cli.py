"""The command `dataplane-server`."""

from __future__ import annotations

import asyncio
import re
import signal
from typing import Annotated, Literal

import typer

from dataplane_server.config import ServerConfig
from dataplane_server.core.limits import Limits
from dataplane_server.observe.log import show_on_stderr
from dataplane_server.service.server import Server

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 10**3, "MB": 10**6, "GB": 10**9}

_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    _app()


def parse_size(text: str) -> int:
    """Bytes of a size such as `4GiB`, `512MiB`, `10GB` or `1000`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write a number and one of {', '.join(filter(None, _UNITS))}")
    return int(float(match[1]) * _UNITS[match[2]])


@_app.command()
def serve(
    listen: Annotated[
        list[str] | None,
        typer.Option(help="Where to serve gRPC: unix:///path or host:port (port 0: any). May be given several times."),
    ] = None,
    http: Annotated[str, typer.Option(help="host:port of /metrics and /healthz; empty for none.")] = "127.0.0.1:9464",
    memory: Annotated[str, typer.Option(help="Budget for the bytes of stored values, e.g. 4GiB.")] = "4GiB",
    max_rows: Annotated[int, typer.Option(help="Rows kept at most.")] = Limits().max_rows,
    grace: Annotated[float, typer.Option(help="Seconds that calls under way may take after SIGTERM.")] = 20.0,
    share_memory: Annotated[
        bool, typer.Option(help="Let clients of this host exchange values through shared memory.")
    ] = True,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve without encryption on addresses that other hosts can reach.")
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="The least event that goes to stderr.")
    ] = "info",
) -> None:
    """Serve rollout samples to trainers until SIGTERM or SIGINT."""
    try:
        config = ServerConfig(
            listen=tuple(listen or ServerConfig.listen),
            http=http or None,
            limits=Limits(memory_bytes=parse_size(memory), max_rows=max_rows),
            share_memory=share_memory,
            insecure=insecure,
            drain_grace_s=grace,
        )
        config.validate()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    show_on_stderr(log_level)
    try:
        asyncio.run(_serve(config))
    except OSError as error:
        typer.echo(f"dataplane-server: {error}", err=True)
        raise typer.Exit(1) from None


async def _serve(config: ServerConfig) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(config)
    try:
        await server.start()
        typer.echo(_banner(server))
        await stopping.wait()
    finally:
        await server.stop()


def _banner(server: Server) -> str:
    lines = [f"RL Data Plane serves gRPC on {address}" for address in server.addresses]
    if server.http_address is not None:
        lines.append(f"metrics on http://{server.http_address}/metrics, health on http://{server.http_address}/healthz")
    lines += [
        "",
        "    from dataplane_client import connect",
        "",
        f'    with connect("{server.addresses[0]}") as client:',
        '        client.register_partition("train", fields=["input_ids"], num_samples=0, consumer_tasks=["train"])',
        "",
    ]
    return "\n".join(lines)

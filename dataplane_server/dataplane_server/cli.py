"""The command `dataplane-server`."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.observe.log import show_on_stderr
from dataplane_server.service.server import Server

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve rollout samples to trainers until SIGTERM or SIGINT."""
    parser = _parser()
    flags = parser.parse_args(arguments)
    try:
        config = _config(flags)
    except ValueError as error:
        parser.error(str(error))
    show_on_stderr(flags.log_level)
    _raise_descriptor_limit()
    try:
        asyncio.run(_serve(config))
    except (ImportError, OSError) as error:
        sys.exit(f"dataplane-server: {error}")


def parse_size(text: str) -> int:
    """Parse a size in bytes, such as `4GiB`, `512MiB`, `10GB` or `1000`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write a number and one of {', '.join(filter(None, _UNITS))}")
    return int(float(match[1]) * _UNITS[match[2]])


def parse_mode(text: str) -> int:
    """Parse an octal file mode as chmod takes it: `0660` or `660`. Raises ValueError."""
    if re.fullmatch(r"0?[0-7]{3}", text) is None:
        raise ValueError(f"--socket-mode: {text!r} is not a file mode; write three octal digits, such as 0660")
    return int(text, 8)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("dataplane-server", description=main.__doc__, allow_abbrev=False)
    parser.add_argument(
        "--listen",
        action="append",
        metavar="ADDRESS",
        help="address to serve gRPC on: unix:///path or host:port (port 0: the system chooses); repeatable "
        f"(default: {ServerConfig.listen[0]})",
    )
    for flag, default, text in (
        ("--http", "127.0.0.1:9464", "host:port to serve /metrics and /healthz on; empty for none"),
        ("--memory", "4GiB", "memory budget for stored values"),
    ):
        parser.add_argument(flag, default=default, help=f"{text} (default: {default})")
    parser.add_argument("--health", metavar="ADDRESS", help="host:port to serve only gRPC health on (default: none)")
    parser.add_argument(
        "--socket-mode",
        metavar="MODE",
        help="mode of the Unix socket files, such as 0660 for clients of the same group (default: by umask)",
    )
    parser.add_argument(
        "--max-rows",
        type=int,
        default=Limits().max_rows,
        help="most rows that the server stores (default: %(default)s)",
    )
    parser.add_argument(
        "--bookkeeping",
        metavar="SIZE",
        help="memory beside values: ids, tags, views, remembered answers (default: 256MiB and 512 bytes for each of "
        "--max-rows)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=20.0,
        help="seconds that calls may take to finish after SIGTERM (default: %(default)s)",
    )
    parser.add_argument(
        "--share-memory",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let clients of this host exchange values through shared memory",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="allow unencrypted gRPC on addresses that other hosts can reach"
    )
    parser.add_argument(
        "--tracing", action="store_true", help="create OpenTelemetry spans; run under opentelemetry-instrument"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="lowest level of the events written to stderr (default: %(default)s)",
    )
    return parser


def _config(flags: argparse.Namespace) -> ServerConfig:
    """The settings from flags and environment. Raises ValueError that names the setting and the rule."""
    config = ServerConfig(
        listen=tuple(flags.listen or ServerConfig.listen),
        http=flags.http or None,
        health=flags.health or None,
        socket_mode=None if flags.socket_mode is None else parse_mode(flags.socket_mode),
        limits=_limits(flags),
        share_memory=flags.share_memory,
        insecure=flags.insecure,
        tracing=flags.tracing,
        drain_grace_s=flags.grace,
        record=Path(recording) if (recording := os.environ.get("DATAPLANE_RECORD")) else None,
    )
    config.validate()
    return config


def _limits(flags: argparse.Namespace) -> Limits:
    bookkeeping = 512 * flags.max_rows + (256 << 20) if flags.bookkeeping is None else parse_size(flags.bookkeeping)
    return Limits(memory_bytes=parse_size(flags.memory), max_rows=flags.max_rows, bookkeeping_bytes=bookkeeping)


def _raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system lets this process have: each local client takes four."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(config: ServerConfig) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(config)
    try:
        await server.start()
        print(_banner(server), flush=True)  # noqa: T201  # a command's output
        await stopping.wait()
    finally:
        await server.stop()


def _banner(server: Server) -> str:
    lines = [f"RL Data Plane serves gRPC on {address}" for address in server.addresses]
    if server.http_address is not None:
        lines.append(f"metrics on http://{server.http_address}/metrics, health on http://{server.http_address}/healthz")
    if server.health_address is not None:
        lines.append(f"gRPC health on {server.health_address}")
    lines += [
        "",
        "    from dataplane_client import connect",
        "",
        f'    with connect("{server.addresses[0]}") as client:',
        '        client.register_partition("train", fields=["input_ids"], num_samples=0, consumer_tasks=["train"])',
        "",
    ]
    return "\n".join(lines)

"""The command `dataplane-server`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import math
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, get_args


@contextlib.contextmanager
def _needs_server_packages() -> Iterator[None]:
    """A block of imports. If a package of others is missing, the command says what to install and exits with 2. Ctrl-C
    ends it as it ends other commands.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("dataplane_server"):
            raise  # a defect of ours
        needs = f"dataplane-server needs the server's packages ({missing}): pip install 'rl-dataplane[server]'"
        print(needs, file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


with _needs_server_packages():
    from dataplane_server.config import Durability, ServerConfig, TlsFiles
    from dataplane_server.core.calls.limits import Limits
    from dataplane_server.durability.life import RecoveryError
    from dataplane_server.host_memory import check_memory
    from dataplane_server.log import event_line, get_log, show_on_stderr
    from dataplane_server.service.grpc.health import HealthListener
    from dataplane_server.service.lives import next_life
    from dataplane_server.service.server import Server
    from dataplane_server.version import VERSION

_LEAST_MEMORY = 1 << 20
_LAST_ANSWERS_S = 1.0
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve rollout samples to trainers until SIGTERM or SIGINT.

    On a terminal, stdout shows the addresses and how to connect, and stderr has plain lines. Elsewhere, each line is
    JSON: stdout has one event, `serving`, with the addresses, and stderr the log.
    """
    parser = _parser()
    flags = parser.parse_args(arguments)
    try:
        config = _config(flags)
        _check_meaning(flags, parser)
        warning = check_memory(config.limits.memory_bytes)
    except ValueError as error:
        parser.error(str(error))
    show_on_stderr(flags.log_level)
    if warning is not None:
        get_log().warning("memory_scarce", why=warning)
    _raise_descriptor_limit()
    try:
        if flags.cluster is None:
            asyncio.run(_serve(config))
        else:
            from dataplane_server.cluster.command import serve_cluster  # not before: it needs Ray

            name, mirrored = flags.cluster_name, flags.cluster_mirrors
            serve_cluster(config, name, flags.ray_address, flags.cluster_cache, mirrored=mirrored)
    except (ImportError, OSError, RecoveryError) as error:
        if sys.stderr.isatty():
            sys.exit(f"dataplane-server: {_in_words(error)}")
        get_log().error("start_failed", why=_in_words(error))
        sys.exit(1)


def _in_words(error: ImportError | OSError | RecoveryError) -> str:
    """The error without Python's own notation."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name == "ray":
        return "--cluster ray needs the package ray: pip install 'rl-dataplane[ray]'"
    return str(error)


def parse_size(text: str) -> int:
    """Parse a size in bytes, such as `4GiB`, `512MiB`, `10GB` or `1000`. Raises ArgumentTypeError."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2] not in _UNITS:
        units = ", ".join(filter(None, _UNITS))
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write a number and one of {units}")
    return int(float(match[1]) * _UNITS[match[2]])


def parse_mode(text: str) -> int:
    """Parse an octal file mode as chmod takes it: `0660` or `660`. Raises ArgumentTypeError."""
    if re.fullmatch(r"0?[0-7]{3}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a file mode; write three octal digits, such as 0660")
    return int(text, 8)


def _parse_id(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,10}", text) is None or int(text) > 4_294_967_294:  # the next one is the kernel's nobody
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a user or group, 0 to 4294967294")
    return int(text)


def _parse_folder(text: str) -> Path:
    if not text:  # of a variable that is not set: Path would take it for the working directory
        raise argparse.ArgumentTypeError("'' names no directory; leave the option out, or name one")
    return Path(text)


_TYPES: dict[str, Callable[[str], object]] = {
    "SIZE": parse_size,
    "MODE": parse_mode,
    "DIR": _parse_folder,
    "ROWS": int,
    "SECONDS": float,
}
"""What the text after a flag becomes, by its metavar."""


_FLAGS_WITH_DEFAULTS = (
    ("--http", "HOST:PORT", "127.0.0.1:9464", "where to serve the page, /metrics and /healthz; '' for nowhere"),
    ("--memory", "SIZE", "4GiB", "budget for stored values, such as 512MiB"),
    ("--max-rows", "ROWS", Limits().max_rows, "most rows to store"),
    ("--grace", "SECONDS", 20.0, "how long calls may take to finish after SIGTERM, in seconds"),
)
_FLAGS = (
    ("--direct", "HOST:PORT", "where clients of other hosts move values over bare TCP (default: nowhere)"),
    (
        "--http-door",
        "HOST:PORT",
        "where a gateway serves JSON over HTTP, for programs without Python (default: nowhere)",
    ),
    ("--health", "HOST:PORT", "where to serve only gRPC health (default: nowhere)"),
    ("--data-dir", "DIR", "keep rows and claims there, for the next life of this server (default: nowhere)"),
    ("--log-history", "SIZE", "how much older log to keep there, for `dataplane replay` (default: 256MiB)"),
    ("--snapshot-dir", "DIR", "where snapshots are (default: in --data-dir)"),
    ("--standby", "DIR", "as --data-dir, for a server that takes over when another one ends (default: no standby)"),
    (
        "--bookkeeping",
        "SIZE",
        "memory beside values: ids, tags, views, remembered answers (default: 256MiB and 512 bytes for each of "
        "--max-rows)",
    ),
    ("--tls-cert", "FILE", "certificate for TLS, in PEM (default: DATAPLANE_TLS_CERT)"),
    ("--tls-key", "FILE", "its key (default: DATAPLANE_TLS_KEY)"),
    ("--tls-client-ca", "FILE", "CA of the certificates that clients must show (default: DATAPLANE_TLS_CLIENT_CA)"),
    ("--access", "FILE", "JSON file of who may call and what they may do (default: DATAPLANE_ACCESS)"),
    ("--socket-mode", "MODE", "of socket files, such as 0660 for clients of the same group (default: by umask)"),
)
_SWITCHES = (
    (
        "--insecure",
        "allow unencrypted gRPC, --direct and --http-door on addresses that other hosts can reach (default: refuse)",
    ),
    ("--tracing", "create OpenTelemetry spans; run under opentelemetry-instrument (default: none)"),
    ("--reflection", "answer gRPC reflection, for tools such as grpcurl (default: do not)"),
    ("--accept-loss", "go on without what is damaged in --data-dir (default: refuse to start)"),
)
_CLUSTER_FLAGS: tuple[tuple[str, str, str | None, str], ...] = (
    ("--cluster-name", "NAME", "dataplane", 'for clients, as in connect("ray://NAME") (default: %(default)s)'),
    ("--cluster-cache", "SIZE", None, "of each node, for values of other nodes (default: a quarter of --memory)"),
    ("--ray-address", "ADDRESS", "auto", "of the Ray cluster; auto: of this machine (default: %(default)s)"),
)
_DIRECTORY_FLAGS = ("--accept-loss", "--log-history")
_FLAG_OF = {
    "bookkeeping_bytes": "--bookkeeping",
    "data_dir": "--data-dir",
    "durability": "--durability",
    "max_rows": "--max-rows",
    "memory_bytes": "--memory",
    "snapshot_dir": "--snapshot-dir",
    "socket_mode": "--socket-mode",
}
"""Where a refusal names a setting."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong without the usage, which fills a screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("dataplane-server", description=(main.__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    parser.add_argument(
        "--listen",
        action="append",
        metavar="ADDRESS",
        help="where to serve gRPC: unix:///path or host:port (port 0: any free one); repeatable "
        f"(default: {ServerConfig.listen[0]})",
    )
    for flag, metavar, default, text in _FLAGS_WITH_DEFAULTS:
        help_text = f"{text} (default: %(default)s)"
        parser.add_argument(flag, metavar=metavar, default=default, type=_TYPES.get(metavar, str), help=help_text)
    for flag, metavar, text in _FLAGS:
        parser.add_argument(flag, metavar=metavar, type=_TYPES.get(metavar, str), help=text)
    for flag, text in _SWITCHES:
        parser.add_argument(flag, action="store_true", help=text)
    for flag, what in (("--allow-user", "user"), ("--allow-group", "group")):
        text = f"number of a {what} of this host that may also call; repeatable (default: none)"
        parser.add_argument(flag, metavar="ID", type=_parse_id, action="append", default=[], help=text)
    parser.add_argument(
        "--durability",
        metavar="KIND",
        choices=get_args(Durability),
        help="what rows survive: memory (nothing), process (the death of the process), disk (also that of the "
        "machine); the last two need --data-dir (default: with --data-dir process, or disk with --cluster; otherwise "
        "memory)",
    )
    parser.add_argument(
        "--no-share-memory",
        dest="share_memory",
        action="store_false",
        help="exchange values over gRPC also with clients of this host (default: through shared memory)",
    )
    help_text = "run on the nodes of a Ray cluster: ray (default: none)"
    parser.add_argument("--cluster", metavar="KIND", choices=("ray",), help=help_text)
    for flag, metavar, value, text in _CLUSTER_FLAGS:
        parser.add_argument(flag, metavar=metavar, default=value, type=_TYPES.get(metavar, str), help=text)
    help_text = "keep a second copy of each node's rows on another node, in --memory more (default: one copy)"
    parser.add_argument("--cluster-mirrors", action="store_true", help=help_text)
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="lowest level of the events on stderr: debug, info, warning or error (default: %(default)s)",
    )
    return parser


def _check_meaning(flags: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Raises ValueError for a flag that would mean nothing."""

    def given(flag: str) -> bool:
        name = flag.removeprefix("--").replace("-", "_")
        return bool(getattr(flags, name) != parser.get_default(name))

    for flag in filter(given, ("--cluster-mirrors", *(flag for flag, *_ in _CLUSTER_FLAGS))):
        if flags.cluster is None:
            raise ValueError(f"{flag} is for a cluster; add --cluster ray, or leave it out")
    for flag in filter(given, _DIRECTORY_FLAGS):
        if flags.data_dir is None and flags.standby is None:
            raise ValueError(f"{flag} is for a directory; add --data-dir, or leave it out")


def _config(flags: argparse.Namespace) -> ServerConfig:
    """The settings from flags and environment. Raises ValueError that names the flag and the rule."""
    if flags.data_dir is not None and flags.standby is not None:
        raise ValueError("give either --data-dir or --standby, which names the same directory for a second server")
    if not 0 <= flags.grace < math.inf:
        raise ValueError(f"--grace must be finite and not negative, got {flags.grace}")
    config = ServerConfig(
        listen=tuple(flags.listen or ServerConfig.listen),
        http=flags.http or None,
        http_door=flags.http_door or None,
        direct=flags.direct or None,
        health=flags.health or None,
        socket_mode=flags.socket_mode,
        limits=_limits(flags),
        share_memory=flags.share_memory,
        insecure=flags.insecure,
        tls=_tls_files(flags),
        access=_path(flags.access, "DATAPLANE_ACCESS"),
        allowed_users=frozenset(flags.allow_user),
        allowed_groups=frozenset(flags.allow_group),
        tracing=flags.tracing,
        reflection=flags.reflection,
        accept_loss=flags.accept_loss,
        durability=flags.durability,
        data_dir=flags.data_dir or flags.standby,
        snapshot_dir=flags.snapshot_dir,
        standby=flags.standby is not None,
        log_history_bytes=ServerConfig.log_history_bytes if flags.log_history is None else flags.log_history,
        drain_grace_s=flags.grace,
    )
    try:
        config.validate(cluster=flags.cluster is not None)
    except ValueError as error:
        settings = rf"(?<!\S)({'|'.join(_FLAG_OF)})\b"
        raise ValueError(re.sub(settings, lambda found: _FLAG_OF[found[0]], str(error))) from None
    return config


def _tls_files(flags: argparse.Namespace) -> TlsFiles | None:
    certificate, key = _path(flags.tls_cert, "DATAPLANE_TLS_CERT"), _path(flags.tls_key, "DATAPLANE_TLS_KEY")
    client_ca = _path(flags.tls_client_ca, "DATAPLANE_TLS_CLIENT_CA")
    if certificate is not None and key is not None:
        return TlsFiles(certificate, key, client_ca)
    if certificate or key or client_ca:
        raise ValueError("TLS needs both --tls-cert and --tls-key")
    return None


def _path(flag: str | None, variable: str) -> Path | None:
    """The file that a flag names, else an environment variable."""
    text = os.environ.get(variable) if flag is None else flag
    return Path(text) if text else None


def _limits(flags: argparse.Namespace) -> Limits:
    bookkeeping = 512 * flags.max_rows + (256 << 20) if flags.bookkeeping is None else flags.bookkeeping
    if flags.memory < _LEAST_MEMORY:
        raise ValueError(f"--memory: {flags.memory} bytes are too few; a server needs at least 1MiB")
    return Limits(memory_bytes=flags.memory, max_rows=flags.max_rows, bookkeeping_bytes=bookkeeping)


def _raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system lets this process have: each local client takes four."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(config: ServerConfig) -> None:
    gc.freeze()  # imported modules are no garbage; looking at them again would halt all calls for 45 ms each time
    stopping, stopped = asyncio.Event(), threading.Event()  # the second one for threads

    def stop() -> None:
        stopping.set()
        stopped.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    probes = HealthListener()
    health_address = None if config.health is None else await probes.start(config.health)
    is_first = True
    try:
        while (life := await next_life(config, stopped)) is not None or config.data_dir is None:
            if not is_first:  # this life has frozen what the former server left, which is garbage by now
                gc.unfreeze()
                gc.collect()
                gc.freeze()
            server = Server(config, life, probes)
            server.health_address = health_address
            if not await _serve_life(server, stopping):
                break
            config = dataclasses.replace(
                config,
                listen=tuple(server.addresses),
                http=server.http_address,
                http_door=server.http_door_address,
                direct=server.direct_address,
                standby=True,  # one that stands by may come first
            )
            del server, life
            is_first = False
    finally:
        await probes.stop()


async def _serve_life(server: Server, stopping: asyncio.Event) -> bool:
    """Serve until the server is stopped. Returns whether another one has to go on from a snapshot."""
    try:
        await server.start()
        print(_banner(server) if sys.stdout.isatty() else _event(server), flush=True)  # noqa: T201  # a command's output
        ends = [asyncio.ensure_future(event.wait()) for event in (stopping, server.left)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
    finally:
        await server.stop(_LAST_ANSWERS_S if server.left.is_set() else None)
    return not stopping.is_set()


def _event(server: Server) -> str:
    addresses = {"listen": server.addresses, "http": server.http_address, "http_door": server.http_door_address}
    addresses |= {"direct": server.direct_address, "health": server.health_address}
    return event_line({"event": "serving", **addresses}, "info", time.time())


def _banner(server: Server) -> str:
    http = "http" if server.config.tls is None else "https"
    lines = [f"RL Data Plane {VERSION} serves gRPC on {address}" for address in server.addresses]
    if server.direct_address is not None:
        lines.append(f"values of clients of other hosts pass at {server.direct_address}")
    if server.http_address is not None:
        lines.append(f"page on {http}://{server.http_address}, metrics under /metrics, health under /healthz")
    if server.http_door_address is not None:
        lines.append(f"JSON over HTTP on {http}://{server.http_door_address}, described under /openapi.json")
    if server.health_address is not None:
        lines.append(f"gRPC health on {server.health_address}")
    lines += [
        "",
        "    from dataplane_client import connect",
        "",
        f'    with connect("{server.addresses[0]}") as client:',
        "        # registering again is safe",
        '        client.register_partition("train", fields=["input_ids"], num_samples=0, consumer_tasks=["train"])',
        "",
    ]
    return "\n".join(lines)

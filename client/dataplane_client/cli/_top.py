"""`dataplane top`: take a snapshot of a server again and again, and show the rates between snapshots.

The command keeps running while the server is not reachable, so that the user sees it come back. On a terminal each
screen replaces the one before, and the last one stays. Elsewhere screens follow each other as plain text or as lines of
JSON.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import typer
from rich.console import Group

from dataplane_client.cli._interrupts import catch_interrupts
from dataplane_client.cli._output import Format, console, print_json
from dataplane_client.cli._rates import PartitionRates, Snapshot, compute_rates
from dataplane_client.cli._server import Server, open_server
from dataplane_client.cli._top_screen import render_silence, render_snapshot
from dataplane_client.errors import DataPlaneError
from dataplane_client.records.descriptions import partition_description, server_status
from rl_dataplane.v1 import data_plane_pb2 as pb

Show = Callable[[str, Snapshot | DataPlaneError, list[PartitionRates], float], None]
"""Shows a snapshot with its rates, or an error with the seconds since the last snapshot."""


def watch(address: str, interval_s: float, count: int | None, output: Format, timeout_s: float) -> None:
    """Show screens until Ctrl-C, or count of them; exits with 1 if the last one has an error."""
    server = open_server(address, timeout_s)
    gc.enable()
    catch_interrupts()
    with contextlib.suppress(KeyboardInterrupt), server, _screen_output(output) as show:
        before: Snapshot | None = None
        since_s = time.monotonic()
        for _ in _ticks(interval_s, count):
            seen = _take_snapshot(server)
            if isinstance(seen, DataPlaneError):
                show(address, seen, [], time.monotonic() - since_s)
                continue
            show(address, seen, compute_rates(before, seen), 0.0)
            before, since_s = seen, seen.at_s
        if isinstance(seen, DataPlaneError):
            raise typer.Exit(1)


def _take_snapshot(server: Server) -> Snapshot | DataPlaneError:
    try:
        status = server.call("GetServerStatus", pb.GetServerStatusRequest())
        listed = server.partitions()
    except DataPlaneError as error:
        return error
    partitions = tuple(map(partition_description, listed))
    return Snapshot(time.monotonic(), server_status(status), partitions)


def _ticks(interval_s: float, count: int | None) -> Iterator[None]:
    """Yield at once and then once each interval. Skips ticks that a long call has missed."""
    due_s = time.monotonic()
    for number in itertools.count(1):
        yield
        if number == count:
            return
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(due_s - time.monotonic() if due_s > time.monotonic() else 0.0)


@contextlib.contextmanager
def _screen_output(output: Format) -> Iterator[Show]:
    out = console()
    if output == "json":
        yield _show_json
    elif out.is_terminal and not out.is_dumb_terminal:
        from rich.live import Live

        with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda *seen: live.update(_screen(*seen), refresh=True)
        out.print(live.renderable)  # the terminal has its former contents again, and now the last screen
    else:
        yield lambda *seen: out.print(_screen(*seen), "", sep="\n")


def _screen(address: str, seen: Snapshot | DataPlaneError, rates: list[PartitionRates], silent_s: float) -> Group:
    if isinstance(seen, DataPlaneError):
        return render_silence(address, seen, silent_s)
    return render_snapshot(address, seen.status, rates)


def _show_json(address: str, seen: Snapshot | DataPlaneError, rates: list[PartitionRates], silent_s: float) -> None:
    when = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"), "address": address}
    if isinstance(seen, DataPlaneError):
        print_json({**when, "reachable": False, "error": str(seen), "silent_s": silent_s}, lines=True)
    else:
        print_json({**when, "reachable": True, "server": seen.status, "partitions": rates}, lines=True)

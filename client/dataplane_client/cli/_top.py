"""`dataplane top`: look at a server again and again, and show what moved since the look before.

A server that does not answer is no reason to end: whoever watches wants to see it come back. On a terminal each screen
takes the place of the one before; elsewhere they follow each other as plain text or lines of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from dataplane_client.cli._flow import Look, PartitionFlow, flows
from dataplane_client.cli._options import Format
from dataplane_client.cli._output import console, print_json
from dataplane_client.cli._server import Server, server_at
from dataplane_client.cli._top_screen import Screen, screen_of, silence_of
from dataplane_client.descriptions import partition_description, server_status
from dataplane_client.errors import DataPlaneError
from rl_dataplane.v1 import data_plane_pb2 as pb

Show = Callable[[str, Look | DataPlaneError, list[PartitionFlow], float], None]
"""Shows a look, or why there was none, and for how many seconds there has been none."""


def watch(address: str, interval_s: float, count: int | None, output: Format, timeout_s: float) -> None:
    """Returns after count screens, or with Ctrl-C."""
    server = server_at(address, timeout_s)
    gc.enable()
    with contextlib.suppress(KeyboardInterrupt), server, _shown_as(output) as show:
        before: Look | None = None
        since_s = time.monotonic()
        for _ in _ticks(interval_s, count):
            seen = _look(server)
            if isinstance(seen, DataPlaneError):
                show(address, seen, [], time.monotonic() - since_s)
                continue
            show(address, seen, flows(before, seen), 0.0)
            before, since_s = seen, seen.at_s


def _look(server: Server) -> Look | DataPlaneError:
    try:
        status = server.ask("GetServerStatus", pb.GetServerStatusRequest())
        listed = server.ask("ListPartitions", pb.ListPartitionsRequest())
    except DataPlaneError as error:
        return error
    partitions = tuple(partition_description(message) for message in listed.partitions)
    return Look(time.monotonic(), server_status(status), partitions)


def _ticks(interval_s: float, count: int | None) -> Iterator[None]:
    """One at once, then one each interval; those that were missed, since a call took longer, are left out."""
    due_s = time.monotonic()
    for number in itertools.count(1):
        yield
        if number == count:
            return
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(due_s - time.monotonic() if due_s > time.monotonic() else 0.0)


@contextlib.contextmanager
def _shown_as(output: Format) -> Iterator[Show]:
    out = console()
    if output == "json":
        yield _show_json
    elif out.is_terminal and not out.is_dumb_terminal:
        from rich.live import Live

        with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda *seen: live.update(_screen(*seen), refresh=True)
    else:
        yield lambda *seen: out.print(_screen(*seen), "", sep="\n")


def _screen(address: str, seen: Look | DataPlaneError, moved: list[PartitionFlow], silent_s: float) -> Screen:
    if isinstance(seen, DataPlaneError):
        return silence_of(address, str(seen), silent_s)
    return screen_of(address, seen.status, moved)


def _show_json(address: str, seen: Look | DataPlaneError, moved: list[PartitionFlow], silent_s: float) -> None:
    when = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"), "address": address}
    if isinstance(seen, DataPlaneError):
        print_json({**when, "reachable": False, "error": str(seen), "silent_s": silent_s}, lines=True)
    else:
        print_json({**when, "reachable": True, "server": seen.status, "partitions": moved}, lines=True)

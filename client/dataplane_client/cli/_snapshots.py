"""`dataplane snapshot`, `snapshots`, `restore` and `verify`: one moment of a server, taken, listed, gone back to, and
checked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid
from typing import NoReturn

from dataplane_client.cli._output import Format, confirm, fail, print_text, show
from dataplane_client.cli._server import Server, server_or_exit
from dataplane_client.cli._table import Table
from dataplane_client.cli._text import plural, size_text
from dataplane_client.errors import UnavailableError
from dataplane_client.records.descriptions import SnapshotDescription, server_status, snapshot_description
from rl_dataplane.v1 import data_plane_pb2 as pb

_LOOK_S = 0.1
_NAMED = 8


def take_snapshot(name: str, address: str, timeout_s: float) -> None:
    """Take one; returns when it is on the server's disk."""
    with server_or_exit(address, timeout_s) as server:
        request = pb.CreateSnapshotRequest(request_id=uuid.uuid4().hex, snapshot=name)
        taken = snapshot_description(server.call("CreateSnapshot", request).snapshot)
    print_text(f"snapshot {taken.name}: {plural(taken.rows, 'row')}, {size_text(taken.values_bytes)} of values")


def show_snapshots(address: str, output: Format, timeout_s: float) -> None:
    with server_or_exit(address, timeout_s) as server:
        listed = _snapshots(server)
    table = Table("snapshot", "taken (UTC)", ">rows", ">values")
    for one in listed:
        table.add_row(one.name, f"{one.taken:%Y-%m-%d %H:%M:%S}", f"{one.rows:,}", size_text(one.values_bytes))
    show(output, listed, table if listed else "no snapshots")


def _snapshots(server: Server) -> list[SnapshotDescription]:
    return [*map(snapshot_description, server.call("ListSnapshots", pb.ListSnapshotsRequest()).snapshots)]


def restore_snapshot(name: str, address: str, timeout_s: float, *, sure: bool) -> None:
    """Say what is lost, ask on a terminal, and restore; returns when the server serves again. A snapshot that does not
    exist is refused before anything is said of a loss.
    """
    with server_or_exit(address, timeout_s) as server:
        known = {one.name: one for one in _snapshots(server)}
        if name not in known:
            last = ", ".join([*known][-_NAMED:]) or "none"
            fail(f"there is no snapshot {name!r} at {server.address}; the last are: {last}")
        print_text(*_loss(server, known[name]))
        if not sure:
            confirm("Go on?", "restore")
        request, began = pb.RestoreSnapshotRequest(request_id=uuid.uuid4().hex, snapshot=name), time.monotonic()
        restored = snapshot_description(server.call("RestoreSnapshot", request).snapshot)
        _await_next_life(server, began, time.monotonic() + timeout_s)
    taken = f"{restored.taken:%Y-%m-%d %H:%M:%S} UTC"
    print_text(f"the server goes on from {restored.name}, of {taken}, with {plural(restored.rows, 'row')}")


def verify_snapshot(folder: str) -> NoReturn:
    """Compare a snapshot with its checksums. The server's package, which does this, takes the place of this process, so
    what ends the command ends all of it.
    """
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it is loaded: Python would show a stack
    os.execv(sys.executable, [sys.executable, "-m", "dataplane_server.durability.verify", folder])  # noqa: S606


def _loss(server: Server, snapshot: SnapshotDescription) -> tuple[str, str]:
    status = server.call("GetServerStatus", pb.GetServerStatusRequest())
    claims = server.call("ListClaims", pb.ListClaimsRequest())
    held = f"{plural(len(claims.claims), 'open claim')} and {plural(len(claims.waiting), 'waiting one')}"
    return (
        f"{server.address} goes back to snapshot {snapshot.name}, of {snapshot.taken:%Y-%m-%d %H:%M:%S} UTC, with "
        f"{plural(snapshot.rows, 'row')}. Rows, commits and clears that came after it are lost.",
        f"It has {plural(status.rows, 'row')} now. Its {plural(status.sessions, 'session')} with {held} end.",
    )


def _await_next_life(server: Server, began: float, deadline: float) -> None:
    """Return when a server answers that has started since `began`."""
    while time.monotonic() < deadline:
        with contextlib.suppress(UnavailableError):
            status = server_status(server.call("GetServerStatus", pb.GetServerStatusRequest()))
            if status.uptime_s < time.monotonic() - began:
                return
        time.sleep(_LOOK_S)
    fail(f"{server.address} has not come back yet; dataplane status says when it has")

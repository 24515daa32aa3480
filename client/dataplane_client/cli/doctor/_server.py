"""Checks of the way to the server: its sockets, its response time, its shared memory and its version."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import google.protobuf
import grpc

from dataplane_client._connect.channel import checked_target
from dataplane_client._connect.socket_rights import RIGHTS_ADVICE, may_connect, owner_text, process_text
from dataplane_client._memory.shared_arena import NO_SOCKET, SharedArena, local_addresses
from dataplane_client.cli._server import Server
from dataplane_client.cli._text import plural, size_text
from dataplane_client.cli.doctor._report import Check, Outcome
from dataplane_client.errors import DataPlaneError
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.local_frames import FILE_SUFFIX

_CALLS = 5
_SLOW_S = 0.1
"""A hundred times the duration of a call on one host."""


# -- socket files ------------------------------------------------------------------------------------------------------


def check_sockets(address: str) -> Iterator[Check]:
    """Check the socket for gRPC and, beside it, FILE.local for shared memory. No checks for other addresses.

    Without FILE.local a client works, over gRPC.
    """
    target = checked_target(address)
    if target.startswith("unix:"):
        path = target.removeprefix("unix://")
        yield _check_socket("socket file", Path(path), "problem")
        yield _check_socket("memory socket", Path(path + FILE_SUFFIX), "warning")


def _check_socket(name: str, path: Path, otherwise: Outcome) -> Check:
    try:
        if not path.is_socket():
            return Check(name, otherwise, *_missing_socket(path))
        found = f"{path}: {owner_text(path)}"
        allowed = may_connect(path)
    except PermissionError:
        found = f"{path}: no permission to search {_closed_folder(path)}"
        allowed = False
    if allowed:
        return Check(name, "ok", found)
    return Check(name, otherwise, f"permission denied on {found}; {process_text()}", RIGHTS_ADVICE)


def _missing_socket(path: Path) -> tuple[str, str]:
    """What was found instead of a socket, and the advice."""
    if path.exists():
        return f"{path} is not a socket", "use the path at which the server listens"
    if not path.parent.is_dir():
        return f"folder {path.parent} does not exist", "mount the server's volume here, at the same path"
    advice = "check that the server runs, that it listens at this path, and that both containers mount the same volume"
    if path.name.endswith(FILE_SUFFIX):
        advice += "; a server with --no-share-memory has no such socket"
    return f"{path} does not exist", advice


def _closed_folder(path: Path) -> Path:
    """The first folder of the path that this user may not search."""
    closed = (folder for folder in reversed(path.parents) if not os.access(folder, os.X_OK, effective_ids=True))
    return next(closed, path.parent)


# -- response ----------------------------------------------------------------------------------------------------------


def check_response(server: Server) -> tuple[Check, pb.GetServerStatusResponse | None]:
    """Check that the server responds and how fast. Also returns its status, or None."""
    try:
        first_s, response = _timed_call(server)
        seconds = statistics.median(_timed_call(server)[0] for _ in range(_CALLS))
    except DataPlaneError as error:
        advice = "check that it runs and listens at this address, in this network namespace or on this volume"
        return Check("server", "problem", str(error), advice), None
    found = f"a call takes {seconds * 1e3:.1f} ms (the first, with the connection, {first_s * 1e3:.1f} ms)"
    if seconds > _SLOW_S:
        advice = "check the server's CPU load (dataplane_event_loop_lag_seconds) and the network"
        return Check("server", "warning", found, advice), response
    return Check("server", "ok", found), response


def _timed_call(server: Server) -> tuple[float, pb.GetServerStatusResponse]:
    started = time.perf_counter()
    response = server.call("GetServerStatus", pb.GetServerStatusRequest())
    return time.perf_counter() - started, response


def check_versions(server_version: str | None) -> Check:
    """server_version: None if the server did not respond."""
    ours = version("rl-dataplane")
    libraries = f"grpc {grpc.__version__}, protobuf {google.protobuf.__version__}, Python {platform.python_version()}"
    if server_version is None:
        return Check("versions", "ok", f"client {ours}, {libraries}")
    found = f"client {ours}, server {server_version}, {libraries}"
    if server_version == ours:
        return Check("versions", "ok", found)
    return Check("versions", "warning", found, "install the same version on both sides")


# -- shared memory -----------------------------------------------------------------------------------------------------


def check_shared_memory(address: str, response: pb.GetServerStatusResponse) -> Check:
    """Attach to the server's memory, as a client does. The warning has the reason why values travel over gRPC."""
    name = "shared memory"
    if response.nodes:
        found = f"values travel over gRPC: this is a cluster of {plural(len(response.nodes), 'node')}"
        advice = "in a program of its Ray cluster, connect to ray://NAME, which uses the memory of the program's node"
        return Check(name, "ok", found, advice)
    if not response.HasField("shared_memory"):
        found = "values travel over gRPC: the server shares no memory"
        return Check(name, "warning", found, "start the server on Linux, without --no-share-memory")
    target, budget = checked_target(address), size_text(response.memory_budget_bytes)
    reasons, errors = [], []
    for place in local_addresses(target, response.shared_memory):
        try:
            arena = SharedArena(place, response.shared_memory.nonce)
        except OSError as error:  # noqa: PERF203  # there are at most two
            errors.append(error)
            reasons.append(_reason(place, error))
        else:
            way = "through it" if arena.can_write else "to this process through it, and larger ones from it over gRPC"
            return Check(name, "ok", f"values travel {way}: {budget}, attached at {_shown(place)}")
    found = f"values travel over gRPC: {'; '.join(reasons) or NO_SOCKET}"
    return Check(name, "warning", found, _advice(target, errors))


def _shown(place: str) -> str:
    """An abstract socket is written with "@", as in ss(8)."""
    return place.replace("\0", "@")


def _reason(place: str, error: OSError) -> str:
    shown, abstract = _shown(place), place.startswith("\0")
    if isinstance(error, PermissionError):
        return f"permission denied on {shown}: {_owner(place)}{process_text()}"
    if isinstance(error, FileNotFoundError):
        return f"{shown} does not exist"
    if isinstance(error, ConnectionRefusedError):
        return f"no process listens at {shown}{' in this network namespace' if abstract else ''}"
    return f"{shown}: {error}"


def _owner(place: str) -> str:
    try:
        return f"{owner_text(Path(place))}; "
    except OSError:  # its folder may not be searched
        return ""


def _advice(target: str, errors: list[OSError]) -> str:
    if any(isinstance(error, PermissionError) for error in errors):
        return RIGHTS_ADVICE
    if target.startswith("unix:"):
        return "mount the whole folder of the socket, so that FILE.local is in it"
    return "if the server runs on this host, let it listen also at a Unix socket, and connect to that"

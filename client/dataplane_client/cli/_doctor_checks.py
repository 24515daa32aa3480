"""What `dataplane doctor` examines, in order: the way to the server, then this process and its host."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import google.protobuf
import grpc

from dataplane_client._connect.channel import checked_target
from dataplane_client._connect.socket_rights import RIGHTS_ADVICE, may_connect, owner_text, process_text
from dataplane_client._memory.shared_arena import NO_SOCKET, SharedArena, local_addresses
from dataplane_client._values.row_kernels import kernel_name
from dataplane_client.cli._server import Server
from dataplane_client.cli._text import plural, size_text
from dataplane_client.errors import DataPlaneError, PermissionDeniedError
from dataplane_client.records.descriptions import ServerStatus, server_status
from rl_dataplane.group_memory import GroupMemory, read_group_memory
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.local_frames import FILE_SUFFIX

Outcome = Literal["ok", "warning", "problem"]

_CALLS = 5
_SLOW_S = 0.1
"""A hundred times the duration of a call on one host."""

_ENOUGH_DESCRIPTORS = 1024
"""The default of Linux: enough for about 900 concurrent calls, beside the files that Python keeps open."""

_TIMEX_BYTES = 512  # struct timex has 208; filled with zeros, it reads the state and changes nothing
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)

_ALLOCATED = ("process", "disk")
"""Durabilities with which the server has allocated its whole memory."""


@dataclass(frozen=True)
class Check:
    """The result of one check. With a problem a client does not work; with a warning it works worse than it could.

    found: what the check found, one sentence. advice: what to change; empty if there is nothing to change.
    """

    name: str
    outcome: Outcome
    found: str
    advice: str = ""


def checks_of(server: Server) -> Iterator[Check]:
    """All checks. Those that need the server's status are left out when the server does not respond."""
    yield from check_sockets(server.address)
    reached, response = check_response(server)
    yield reached
    if response is not None:
        status = server_status(response)
        yield _check_health(status)
        shared = check_shared_memory(server.address, response)
        yield shared
        if shared.outcome == "ok" and not response.nodes:
            yield check_memory_limit(status)
            yield check_host_memory(status)
    yield check_descriptors()
    yield check_versions(None if response is None else response.version)
    yield check_kernels()
    yield check_clock()


def _check_health(status: ServerStatus) -> Check:
    """The same health as that of `dataplane status`."""
    if not status.unhealthy:
        return Check("health", "ok", "healthy")
    return Check("health", "warning", "; ".join(status.unhealthy), "see `dataplane status` and `dataplane top`")


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
        if isinstance(error, PermissionDeniedError):
            advice = "correct the token (DATAPLANE_TOKEN_FILE), the certificate, or the server's access file"
        found, _, _ = str(error).partition('. "dataplane doctor')  # which this is
        return Check("server", "problem", found, advice), None
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


# -- memory ------------------------------------------------------------------------------------------------------------
#
# Pages of the arena are charged to the control group of the process that first writes them, which may be a client. The
# kernel ends a client whose limit is smaller than the arena for memory that it never allocated. A server with a data
# directory allocates them all at its start.


def check_memory_limit(status: ServerStatus, group: GroupMemory | None = None) -> Check:
    """Check whether the arena fits into a control group's limit. group: None for that of this process."""
    budget_bytes = 0 if status.durability in _ALLOCATED else status.memory_budget_bytes
    group = read_group_memory() if group is None else group
    used = "" if group.used_bytes is None else f" ({size_text(group.used_bytes)} in use)"
    if group.limit_bytes is None:
        return Check("memory limit", "ok", f"none for this process{used}")
    found = (
        f"{size_text(group.limit_bytes)} for this process{used}, an arena of {size_text(status.memory_budget_bytes)}"
    )
    if group.limit_bytes >= budget_bytes:
        return Check("memory limit", "ok", found)
    found += ", whose pages are charged to the process that first writes them"
    advice = "raise the container's memory limit to its own needs plus the arena's size, or lower the server's --memory"
    return Check("memory limit", "warning", found, advice)


def check_host_memory(status: ServerStatus, meminfo: Path = Path("/proc/meminfo")) -> Check:
    """Check whether the host has the memory that the arena may still take."""
    available = _available_bytes(meminfo)
    if available is None:
        return Check("host memory", "ok", f"unknown: {meminfo} has no line MemAvailable")
    allocated = status.memory_budget_bytes if status.durability in _ALLOCATED else status.memory_used_bytes
    missing = status.memory_budget_bytes - allocated
    found = f"{size_text(available)} available, the arena may take another {size_text(missing)}"
    if available >= missing:
        return Check("host memory", "ok", found)
    return Check("host memory", "warning", found, "lower the server's --memory, or move it to a host with more memory")


def _available_bytes(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return None if words is None else int(words[1]) * 1024


# -- process -----------------------------------------------------------------------------------------------------------


def check_descriptors() -> Check:
    """Check whether this process may have a file descriptor for each concurrent call."""
    name, (soft, hard) = "file descriptors", resource.getrlimit(resource.RLIMIT_NOFILE)
    found = (
        f"limit {_limit_text(soft)} (can be raised to {_limit_text(hard)}); each running call through shared memory "
        "takes one"
    )
    if 0 <= soft < _ENOUGH_DESCRIPTORS:
        advice = f"run `ulimit -n {_ENOUGH_DESCRIPTORS}` before the client starts"
        return Check(name, "warning", found, advice)
    return Check(name, "ok", found)


def _limit_text(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def check_kernels() -> Check:
    """Check whether compiled code copies rows. Without torch, as in a server's image, there are no rows to copy."""
    name = "row kernels"
    if find_spec("torch") is None:
        return Check(name, "ok", "not needed: torch is not installed here")
    if kernel_name == "c":
        return Check(name, "ok", "compiled")
    found = "not compiled: NumPy copies rows, on one thread, several times slower"
    return Check(name, "warning", found, "install a C compiler (gcc), then reinstall the package")


def check_clock() -> Check:
    """Check whether the clock of this host is synchronised.

    The data plane does not depend on it: the server measures graces, waits and ages on its own monotonic clock. But
    logs and traces of several hosts are read together. The server sends no time of day with which to compare.
    """
    state = _clock_state()
    if state is None:
        return Check("clock", "ok", "unknown: the kernel does not report whether it is synchronised")
    if state != _UNSYNCHRONISED:
        return Check("clock", "ok", "synchronised")
    found = "not synchronised: times in logs and traces may be off; ages and heartbeats do not depend on it"
    return Check("clock", "warning", found, "run chrony or systemd-timesyncd on the host")


def _clock_state() -> int | None:
    """The state that adjtimex(2) reports; None where the call is not allowed, as in some sandboxes."""
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return state if state >= 0 else None

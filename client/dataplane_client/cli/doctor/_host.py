"""Checks of the process and its host: memory, file descriptors, compiled kernels and the clock."""

from __future__ import annotations

import ctypes
import resource
from importlib.util import find_spec
from pathlib import Path

from dataplane_client._values.row_kernels import kernel_name
from dataplane_client.answers.descriptions import ServerStatus
from dataplane_client.cli._text import size_text
from dataplane_client.cli.doctor._report import Check
from rl_dataplane.group_memory import GroupMemory, read_group_memory

_ENOUGH_DESCRIPTORS = 1024
"""The default of Linux: enough for about 900 concurrent calls, beside the files that Python keeps open."""

_TIMEX_BYTES = 512  # struct timex has 208; filled with zeros, it reads the state and changes nothing
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)

_ALLOCATED = ("process", "disk")
"""Durabilities with which the server has allocated its whole memory."""


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

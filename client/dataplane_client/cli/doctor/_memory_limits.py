"""Whether the arena fits where its pages are charged: to the control group of whichever process first writes them.

That may be a client. One whose limit is smaller than the arena is ended by the kernel some day, for memory that it
never allocated.
"""

from __future__ import annotations

from pathlib import Path

from dataplane_client.cli._words import size_text
from dataplane_client.cli.doctor._cgroup import GroupMemory, memory_of_group
from dataplane_client.cli.doctor._check import Check
from dataplane_client.descriptions import ServerStatus

_MEMINFO = Path("/proc/meminfo")


def memory_limit_check(budget_bytes: int, group: GroupMemory | None = None) -> Check:
    """group: the limit to judge; None for that of this process."""
    group = memory_of_group() if group is None else group
    used = "" if group.used_bytes is None else f" ({size_text(group.used_bytes)} in use)"
    if group.limit_bytes is None:
        return Check("memory limit", "ok", f"none for this process{used}")
    found = f"{size_text(group.limit_bytes)} for this process{used}, an arena of {size_text(budget_bytes)}"
    if group.limit_bytes >= budget_bytes:
        return Check("memory limit", "ok", found)
    advice = "raise the container's memory limit to the arena's size and what it needs itself, or lower --memory"
    return Check("memory limit", "warning", f"{found}, whose pages are charged to whoever first writes them", advice)


def host_memory_check(status: ServerStatus, meminfo: Path = _MEMINFO) -> Check:
    """Whether the host has what the arena may still take."""
    free = _available_bytes(meminfo)
    if free is None:
        return Check("host memory", "ok", f"not known: {meminfo} does not tell what is available")
    missing = status.memory_budget_bytes - status.memory_used_bytes
    found = f"{size_text(free)} available, the arena may take another {size_text(missing)}"
    if free >= missing:
        return Check("host memory", "ok", found)
    return Check("host memory", "warning", found, "lower the server's --memory, or move it to a host with more memory")


def _available_bytes(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return None if words is None else int(words[1]) * 1024

"""Memory of a process in bytes, as Linux counts it."""

from __future__ import annotations

import os
from pathlib import Path


def resident(pid: int | None = None) -> int:
    """Resident bytes, including shared memory."""
    return _field("VmRSS", pid)


def resident_alone(pid: int) -> int:
    """Resident bytes without shared memory."""
    return _field("VmRSS", pid) - _field("RssShmem", pid)


def peak(pid: int | None = None) -> int:
    """Peak resident bytes since the process started or `forget_peak` was called."""
    return _field("VmHWM", pid)


def forget_peak(pid: int | None = None) -> None:
    """Reset `peak` to the bytes resident now."""
    Path(f"/proc/{pid or os.getpid()}/clear_refs").write_text("5")


def _field(name: str, pid: int | None) -> int:
    for line in Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"the system does not report {name}")

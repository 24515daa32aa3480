"""Describe the machine, versions and date of a measurement."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

_DISTRIBUTIONS = ("rl-dataplane", "torch", "numpy", "grpcio", "protobuf", "tensordict")


def describe() -> dict[str, str]:
    """Facts by name: date, processor, cores this process may use, memory, system, versions."""
    facts = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }
    return facts | {name: version(name) for name in _DISTRIBUTIONS}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"

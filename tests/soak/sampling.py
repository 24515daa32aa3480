"""What processes take, as the kernel counts it."""

from __future__ import annotations

import csv
import time
from collections import defaultdict
from pathlib import Path

from tests.soak.verdict import MEASURES

Sample = tuple[float, ...]
"""A value for each of MEASURES."""

_MIB_KIB = 1024


def sample_of(pid: int) -> Sample:
    """Raises OSError if the process is gone."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    resident, anonymous = (int(status[name].split()[0]) / _MIB_KIB for name in ("VmRSS", "RssAnon"))
    arenas = sum("/memfd:" in line for line in (process / "maps").read_text().splitlines())
    return resident, anonymous, int(status["Threads"]), len(list((process / "fd").iterdir())), arenas


class Curves:
    """Samples of processes by name, which also go into a CSV file, line by line. began: the time of second 0."""

    def __init__(self, out: Path) -> None:
        self.began = time.monotonic()
        self._file = out.open("w", newline="")
        self._csv = csv.writer(self._file)
        self._csv.writerow(["seconds", "process", "pid", *(f"{m.name} {m.unit}".strip() for m in MEASURES)])
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.samples: dict[str, list[Sample]] = defaultdict(list)

    def add(self, process: str, pid: int) -> None:
        """Sample a process; one that is gone has no sample."""
        try:
            sample = sample_of(pid)
        except (OSError, KeyError):  # a process that has ended has no memory
            return
        seconds = time.monotonic() - self.began
        self.seconds[process].append(seconds)
        self.samples[process].append(sample)
        self._csv.writerow([f"{seconds:.1f}", process, pid, *(f"{value:.1f}" for value in sample)])

    def close(self) -> None:
        self._file.close()

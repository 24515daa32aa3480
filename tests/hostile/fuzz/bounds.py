"""What one input may cost: a second of CPU time and 100 MB of memory for each KiB of it, whatever it holds.

CPU time of the thread and the peak of the process's memory do not depend on what else the machine does, nor on what
else the process has: a garbage collection looks only at the input's objects, and the peak is measured anew for each
input.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable
from pathlib import Path

Target = Callable[[bytes], None]

CPU_S = 1.0
MEMORY_BYTES = 100_000_000


class TooExpensiveError(AssertionError):
    """An input costs more than any of its size may."""


def bounded(target: Target, cpu_s: float = CPU_S) -> Target:
    """The target, which also raises TooExpensiveError. Its first call is free: it builds what all inputs share."""
    begun = False

    def measured(data: bytes) -> None:
        nonlocal begun
        gc.freeze()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
        memory, seconds = _peak_bytes(), time.thread_time()
        try:
            target(data)
        finally:
            gc.unfreeze()
        seconds, memory = time.thread_time() - seconds, _peak_bytes() - memory
        units = 1 + len(data) / 1024
        if begun and (seconds > cpu_s * units or memory > MEMORY_BYTES * units):
            raise TooExpensiveError(
                f"{len(data)} bytes cost {seconds:.2f} s of CPU time and {memory >> 20} MiB of memory"
            )
        begun = True

    return measured


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10

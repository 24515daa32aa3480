"""The processes of a run: each has a log file, is watched, and is always ended with the run."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
_LOG_TAIL_LINES = 15


class Processes:
    """Context manager that ends every process it started."""

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        self._logs = logs
        self._environment = environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            _end(process)

    def start(self, name: str, command: Sequence[object]) -> None:
        with self.log(name).open("wb") as log:
            arguments = [sys.executable, *map(str, command)]
            self._running[name] = subprocess.Popen(
                arguments, stdout=log, stderr=subprocess.STDOUT, env=self._environment, cwd=HERE
            )

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def check(self) -> None:
        """Raise RuntimeError if a process has failed, with the end of its log."""
        for name, process in self._running.items():
            if process.poll() not in (None, 0):
                tail = "\n".join(self.log(name).read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
                raise RuntimeError(f"{name} ended with exit code {process.returncode}:\n{tail}")

    def wait(self, name: str, timeout_s: float) -> None:
        """Wait until a process ends. Raises RuntimeError if it failed, TimeoutExpired if it did not end in time."""
        self._running[name].wait(timeout_s)
        self.check()

    def first_lines(self, name: str, marker: str, timeout_s: float) -> str:
        """Wait until a process has written `marker`; return all it has written. Raises TimeoutError or RuntimeError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(FileNotFoundError):
                text = self.log(name).read_text()
                if marker in text:
                    return text
            time.sleep(0.05)
        raise TimeoutError(f"{name} did not start within {timeout_s:.0f} s; see {self.log(name)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

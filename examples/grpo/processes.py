"""The processes of a run: each has a log file, is watched, and is always ended with the run."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
_LOG_TAIL_LINES = 15
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


class ProcessLostError(RuntimeError):
    """A process has failed. Its message has the end of the log."""


class Processes:
    """Context manager that ends every process it started."""

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        self._logs = logs
        self._environment = environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._again: dict[str, Sequence[object]] = {}
        self._ending = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> Processes:
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._watcher.join()
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            _end(process)

    def start(self, name: str, command: Sequence[object], *, again: bool = False) -> None:
        """Start a process, unless it runs. again: also whenever it fails, from now on."""
        if name in self._running and self._running[name].poll() is None:
            return
        self.log(name).write_bytes(b"")
        self._running[name] = self._spawn(name, command)
        if again:
            self._again[name] = command

    def _spawn(self, name: str, command: Sequence[object]) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=HERE,
            )

    def _watch(self) -> None:
        while not self._ending.wait(_POLL_S):
            for name, command in list(self._again.items()):
                if self._running[name].poll() not in (None, 0):
                    self._running[name] = self._spawn(name, command)

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def check(self) -> None:
        """Raise ProcessLostError if a process has failed that is not started again."""
        for name, process in self._running.items():
            if name not in self._again and process.poll() not in (None, 0):
                tail = "\n".join(self.log(name).read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
                raise ProcessLostError(f"{name} ended with exit code {process.returncode}:\n{tail}")

    def wait(self, name: str, timeout_s: float) -> None:
        """Wait until a process ends by itself. Raises ProcessLostError, or TimeoutError if it does not end in time."""
        deadline = time.monotonic() + timeout_s
        while self._running[name].poll() != 0:
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} did not end within {timeout_s:.0f} s; see {self.log(name)}")
            time.sleep(_POLL_S)

    def first_lines(self, name: str, marker: str, timeout_s: float) -> str:
        """Wait until a process has written `marker`; return all it has written. TimeoutError, ProcessLostError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(FileNotFoundError):
                text = self.log(name).read_text()
                if marker in text:
                    return text
            time.sleep(_POLL_S)
        raise TimeoutError(f"{name} did not start within {timeout_s:.0f} s; see {self.log(name)}")


def end_with_parent() -> None:
    """Let this process be killed when its parent ends. Otherwise a rank that outlives torchrun would go on with steps
    that are for the next trainer.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

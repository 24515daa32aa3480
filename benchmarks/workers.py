"""Worker processes seen from outside: systems that run in a separate environment or process.

A worker answers one call at a time (see `serving`), so systems of several processes can take turns. Every wait has a
deadline; a worker that misses it is killed with all processes that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class WorkerError(RuntimeError):
    """A worker failed, ended, or did not answer in time."""


class Worker:
    """One worker process; made by `worker`."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, log: Path) -> None:
        self._process = process
        self._name = name
        self._log = log
        self._read = b""

    def call(self, name: str, /, timeout_s: float = 120.0, **arguments: object) -> dict[str, Any]:
        """Call the worker and return its answer. Raises WorkerError."""
        self.begin(name, **arguments)
        return self.finish(timeout_s)

    def begin(self, name: str, /, **arguments: object) -> None:
        """Begin a call without waiting for its answer."""
        if self._process.stdin is None:
            raise WorkerError(f"{self._name} has no input")
        try:
            self._process.stdin.write(json.dumps({"call": name, "arguments": arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("has ended") from None

    def finish(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """Wait for the answer to the begun call. Raises WorkerError."""
        answer = json.loads(self._line(timeout_s))
        if "error" in answer:
            raise self._failed(answer["error"])
        result: dict[str, Any] = answer["ok"]
        return result

    def _line(self, timeout_s: float) -> bytes:
        if self._process.stdout is None:
            raise WorkerError(f"{self._name} has no output")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(timeout_s):
                    raise self._failed(f"did not answer within {timeout_s:.0f} s")
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    raise self._failed("has ended")
                self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _failed(self, reason: str) -> WorkerError:
        return WorkerError(f"{self._name}: {reason} (see {self._log})")


@contextmanager
def worker(python: Path, module: str, logs: Path, number: int = 0) -> Iterator[Worker]:
    """Run a module of this folder with an interpreter as a worker; its output goes to a file in `logs`."""
    log = logs / f"{module}-{number}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [python, "-m", module],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # so that it can be killed with all that it started
        )
        try:
            yield Worker(process, module, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            process.stdin.close()  # a worker cleans up and ends when its input does
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()

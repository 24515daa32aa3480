"""Worker processes: systems that run in a process, or an environment, of their own and answer one call at a time.

So systems of several processes can take turns. A worker makes the `Calls` of a module of this folder, calls its methods
and sends what they return. Every wait has a deadline; a worker that misses it is killed with all processes that it
started. Needs only the standard library, because the environments of peers import it, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LOGS = HERE.parent / "runs" / "bench"
OURS = Path(sys.executable)
"""The interpreter of our own environment."""


class WorkerError(RuntimeError):
    """A worker failed, ended, or did not answer in time."""


class Worker:
    """One worker process; made by `worker`."""

    def __init__(self, pipe: Connection, name: str, log: Path) -> None:
        self._pipe, self._name, self._log = pipe, name, log

    def call(self, name: str, /, **arguments: object) -> Any:
        """Call a method and return its answer. Raises WorkerError."""
        self.begin(name, **arguments)
        return self.finish()

    def begin(self, name: str, /, **arguments: object) -> None:
        """Begin a call without waiting for its answer."""
        with self._ends():
            self._pipe.send((name, arguments))

    def finish(self, timeout_s: float = 120.0) -> Any:
        """Wait for the answer to the begun call. Raises WorkerError."""
        with self._ends():
            if not self._pipe.poll(timeout_s):
                raise self._failed(f"did not answer within {timeout_s:.0f} s")
            error, answer = self._pipe.recv()
        if error:
            raise self._failed(error)
        return answer

    @contextlib.contextmanager
    def _ends(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            raise self._failed("has ended") from None

    def _failed(self, reason: str) -> WorkerError:
        return WorkerError(f"{self._name}: {reason} (see {self._log})")


@contextlib.contextmanager
def worker(python: Path, module: str, number: int = 0) -> Iterator[Worker]:
    """Run a module as a worker with an interpreter; what it prints goes to a file."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log, (ours, theirs) = LOGS / f"{module}-{number}.log", Pipe()
    with log.open("wb") as printed:
        command: list[str | Path] = [python, "-m", "workers", module, str(theirs.fileno())]
        process = subprocess.Popen(
            command,
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # so that it can be killed with all that it started
        )
    theirs.close()
    try:
        yield Worker(ours, module, log)
    finally:
        ours.close()  # a worker cleans up and ends when its calls do
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _serve(calls: Any, pipe: Connection) -> None:
    with contextlib.suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            try:
                pipe.send(("", getattr(calls, name)(**arguments)))
            except Exception as error:  # noqa: BLE001  # the caller receives every failure of a peer
                traceback.print_exc()
                pipe.send((f"{type(error).__name__}: {error}", None))


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        made = import_module(sys.argv[1]).Calls()
        stack.callback(lambda: getattr(made, "close", int)())
        _serve(made, Connection(int(sys.argv[2])))

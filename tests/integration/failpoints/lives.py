"""The lives of a server on a data directory, one after the other, for tests that end them as they like."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

from tests.integration.failpoints.failpoint import Failpoint

_ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def zygote() -> Any:
    """A process that forks servers, one at a time."""
    command = [sys.executable, "-m", "tests.integration.failpoints.server_zygote"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=_ROOT, stdin=pipe, stdout=pipe, encoding="utf-8")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Lives:
    """Lives with the same flags on the directory `data`. A context manager that kills the one that runs.

    zygotes: take turns, so that no life has the hashes of strings that the life before had.
    """

    def __init__(self, zygotes: list[Any], folder: Path, data: Path, *flags: str, **settings: int) -> None:
        self.address = f"unix://{folder}/s"
        self._pid: int | None = None
        self._zygotes = itertools.cycle(zygotes)
        self._arguments = ["--listen", self.address, "--http", "", "--data-dir", str(data), *flags]
        self._log = folder / "server.log"
        self._data = data
        self._settings = settings

    def __enter__(self) -> Lives:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid is not None:
            self.kill()

    @property
    def log(self) -> str:
        """Of all lives."""
        return self._log.read_text() if self._log.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        return [entry for entry in map(json.loads, self.log.splitlines()) if entry["event"] == name]

    def begin(self, *flags: str, failpoint: Failpoint | None = None) -> int | None:
        """Begin a life. None once it serves; its exit code if it ends before."""
        self._zygote = next(self._zygotes)
        point = None if failpoint is None else astuple(failpoint)
        life = ([*self._arguments, *flags], str(self._log), str(self._data), self._settings, point)
        self._zygote.stdin.write(json.dumps(life) + "\n")
        self._zygote.stdin.flush()
        self._pid = self._said()["pid"]
        code: int | None = self._said().get("code")
        self._pid = self._pid if code is None else None
        return code

    def ended(self) -> int:
        """Wait until the life ends; its exit code."""
        code: int = self._said()["code"]
        self._pid = None
        return code

    def kill(self) -> None:
        assert self._pid is not None
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(self._pid, signal.SIGKILL)
        self.ended()

    def _said(self) -> dict[str, Any]:
        """What zygote or server say next."""
        return dict(json.loads(self._zygote.stdout.readline()))

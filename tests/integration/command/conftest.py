"""The command `dataplane-server` as its users start it: a process with flags, a banner and signals."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "dataplane-server"


class Command:
    """A running server process; `banner` is what it printed until it served."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [COMMAND, *arguments], stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8"
            )
        assert self.process.stdout is not None
        self.banner = ""
        for line in self.process.stdout:
            self.banner += line
            if "register_partition" in line:
                return
        raise AssertionError(f"the server ended with {self.process.wait()}: {self.log}")

    @property
    def log(self) -> str:
        return self._log.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def start_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Command]]:
    """Start the command with these flags (HTTP off, unless they say otherwise) and wait until it serves."""
    folder = tmp_path_factory.mktemp("logs")
    with contextlib.ExitStack() as running:

        def start(*flags: str) -> Command:
            arguments = [*flags, *(() if "--http" in flags else ("--http", ""))]
            command = Command(["--memory", "64MiB", *arguments], folder / f"{len(list(folder.iterdir()))}.log")
            running.callback(command.close)
            return command

        yield start

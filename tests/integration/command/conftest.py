"""The command `dataplane-server` as its users see it: a process with flags, events and signals."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import commands

from dataplane_client.client import connect

COMMAND = Path(sys.executable).parent / "dataplane-server"


class Command:
    """A running server process. addresses, http_address, health: as it printed them when it served."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._log = log
        with log.open("w") as stderr:
            self.process = commands.begin(
                [COMMAND, *arguments], stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8"
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.stdout.close()
            pytest.fail(f"the server ended with {self.process.wait()}: {self.log}")
        serving = json.loads(line)
        assert serving["event"] == "serving"
        self.addresses: list[str] = serving["listen"]
        self.http_address: str = serving["http"]
        self.health: str = serving["health"]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def check_books(self) -> None:
        """Every row, and every delivery, is there or counted under the reason for which it is gone."""
        with connect(self.addresses[0], transport="grpc", timeout_s=120.0) as client:
            for partition in client.partitions():
                assert partition.rows_put_total == partition.rows + sum(partition.removed_rows.values())
                for task in partition.tasks:
                    assert task.delivered_rows_total == task.claimed_rows + sum(task.ended_deliveries.values())
                    states = (task.untaken_rows, task.claimed_rows, task.consumed_rows, task.delayed_rows)
                    assert partition.rows == sum(states) + task.dead_rows

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(300)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


Start = Callable[..., Command]
"""Starts the command with these flags (HTTP off, unless they say otherwise) and waits until it serves."""

_running: list[Command] = []


def _check_books() -> None:
    for command in _running:
        if command.process.poll() is None:
            command.check_books()


@pytest.fixture(autouse=True)
def books_balance() -> Iterator[None]:
    """Whatever a test does to servers that it shares, their books balance when it is over, as far as they run."""
    yield
    _check_books()


@contextlib.contextmanager
def _starting(folder: Path) -> Iterator[Start]:
    """A block that starts servers, whose books balance at its end, and which then end."""
    started: list[Command] = []

    def start(*flags: str) -> Command:
        arguments = [*flags, *(() if "--http" in flags else ("--http", ""))]
        started.append(Command(["--memory", "64MiB", *arguments], folder / f"{len(started)}.log"))
        _running.append(started[-1])
        return started[-1]

    try:
        yield start
        _check_books()
    finally:
        for command in started:
            command.close()
            _running.remove(command)


@pytest.fixture
def start_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts servers of the test."""
    with _starting(tmp_path_factory.mktemp("logs")) as start:
        yield start


@pytest.fixture(scope="session")
def start_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts servers that tests share."""
    with _starting(tmp_path_factory.mktemp("logs")) as start:
        yield start

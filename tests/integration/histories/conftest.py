"""A server process whose log is replayed when a test is over."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests import commands

COMMAND = Path(sys.executable).parent / "dataplane-server"
_DATAPLANE = Path(sys.executable).parent / "dataplane"
_TOTALS = ("rows", "rows_put_total", "rows_cleared_total", "written_bytes_total")
_TASK_TOTALS = ("claims_total", "delivered_rows_total", "consumed_rows_total")


@dataclass(frozen=True)
class ServerProcess:
    """A server that serves."""

    address: str
    pid: int


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server process. At the end its messages must have no error. Its calls, replayed from its data directory, must
    give the state of each checkpoint, and in the end the totals that the server told.
    """
    listen = f"unix://{tmp_path}/dataplane.sock"
    log, data = tmp_path / "server.log", tmp_path / "data"
    flags = ["--listen", listen, "--http", "", "--memory", "1GiB", "--log-level", "warning", "--data-dir", str(data)]
    flags += ["--log-history", "64GiB"]  # keeps the log from its first call on
    with log.open("w") as stderr:
        process = commands.begin([COMMAND, *flags], stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8")
    try:
        assert process.stdout is not None
        assert '"event": "serving"' in process.stdout.readline(), log.read_text()
        yield ServerProcess(listen, process.pid)
        told = totals("status", "--server", listen)
        process.terminate()
        assert process.wait(60) == 0
        assert [
            line for line in log.read_text().splitlines() if '"level": "error"' in line or "Traceback" in line
        ] == []
        checked = commands.run([_DATAPLANE, "replay", data, "--check"])
        assert checked.returncode == 0, checked
        assert totals("replay", str(data), "status") == told
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def totals(*command: str) -> list[Any]:
    """What a screen says of each partition and task that only grows, and the rows that are there."""
    shown = commands.run([_DATAPLANE, *command, "--output", "json"]).stdout
    return [
        [partition["partition_id"], *map(partition.get, _TOTALS)]
        + [[task["task"], *map(task.get, _TASK_TOTALS)] for task in partition["tasks"]]
        for partition in json.loads(shown)["partitions"]
    ]


@pytest.fixture
def address(server: ServerProcess) -> str:
    """Where it serves."""
    return server.address

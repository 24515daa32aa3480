"""A server process whose log is replayed when a test is over."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import commands
from tests.integration.failpoints.lives import Lives, errors_in

_DATAPLANE = Path(sys.executable).parent / "dataplane"
_TOTALS = ("rows", "rows_put_total", "rows_cleared_total", "written_bytes_total")
_TASK_TOTALS = ("claims_total", "delivered_rows_total", "consumed_rows_total")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """That of a server process. At the end its messages must have no error. Its calls, replayed from its data
    directory, must give the state of each checkpoint, and in the end the totals that the server told.
    """
    flags = ("--memory", "1GiB", "--log-level", "warning", "--log-history", "64GiB")  # the log from its first call on
    with Lives(tmp_path, data := tmp_path / "data", *flags) as server:
        assert server.begin() is None, server.log
        yield server.address
        told = totals("status", "--server", server.address)
        assert server.end(signal.SIGTERM) == 0
    assert errors_in(server.log) == []
    checked = commands.run([_DATAPLANE, "replay", data, "--check"])
    assert checked.returncode == 0, checked
    assert totals("replay", str(data), "status") == told


def totals(*command: str) -> list[Any]:
    """What a screen says of each partition and task that only grows, and the rows that are there."""
    shown = commands.run([_DATAPLANE, *command, "--output", "json"]).stdout
    return [
        [partition["partition_id"], *map(partition.get, _TOTALS)]
        + [[task["task"], *map(task.get, _TASK_TOTALS)] for task in partition["tasks"]]
        for partition in json.loads(shown)["partitions"]
    ]

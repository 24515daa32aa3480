"""A server process, as its users start it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "dataplane-server"


@dataclass(frozen=True)
class ServerProcess:
    """A server that serves."""

    address: str
    pid: int


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server process; in the end its log must not tell of an error."""
    listen = f"unix://{tmp_path}/dataplane.sock"
    log = tmp_path / "server.log"
    flags = ["--listen", listen, "--http", "", "--memory", "1GiB", "--log-level", "warning"]
    with log.open("w") as stderr:
        process = subprocess.Popen([COMMAND, *flags], stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8")
    try:
        assert process.stdout is not None
        assert any("register_partition" in line for line in process.stdout), log.read_text()
        yield ServerProcess(listen, process.pid)
        process.terminate()
        assert process.wait(60) == 0
        assert [
            line for line in log.read_text().splitlines() if '"level": "error"' in line or "Traceback" in line
        ] == []
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def address(server: ServerProcess) -> str:
    """Where it serves."""
    return server.address

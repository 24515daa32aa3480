"""A server process, as its users start it, whose every call is recorded and replayed when a test is over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataplane_server.replaying.recording import replay

COMMAND = Path(sys.executable).parent / "dataplane-server"


@dataclass(frozen=True)
class ServerProcess:
    """A server that serves."""

    address: str
    pid: int


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server process. At the end its log must have no error, and its recording must replay with equal outcomes and an
    equal final state.
    """
    listen = f"unix://{tmp_path}/dataplane.sock"
    log, recording = tmp_path / "server.log", tmp_path / "recording"
    flags = ["--listen", listen, "--http", "", "--memory", "1GiB", "--log-level", "warning"]
    with log.open("w") as stderr:
        environment = {**os.environ, "DATAPLANE_RECORD": str(recording)}
        process = subprocess.Popen(
            [COMMAND, *flags], stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8", env=environment
        )
    try:
        assert process.stdout is not None
        assert '"event": "serving"' in process.stdout.readline(), log.read_text()
        yield ServerProcess(listen, process.pid)
        process.terminate()
        assert process.wait(60) == 0
        assert [
            line for line in log.read_text().splitlines() if '"level": "error"' in line or "Traceback" in line
        ] == []
        found = replay(recording)
        print(f"{found.calls} calls replayed, {found.refused} of them refused")  # noqa: T201  # shown by -s
        assert found.equal, found
        assert found.digests[0] is not None
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def address(server: ServerProcess) -> str:
    """Where it serves."""
    return server.address

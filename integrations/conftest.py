"""What holds for every test of an integration, and a real server for adapters, over both ways that values travel."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.conftest import laws_hold, the_same_draws, three_nodes
from tests.integration.failpoints.lives import Lives

from dataplane_client.client import DataPlaneClient, connect
from dataplane_server.testing import running_server

__all__ = ["laws_hold", "the_same_draws", "three_nodes"]


@pytest.fixture(params=["shm", pytest.param("grpc", marks=pytest.mark.long)])
def way(request: pytest.FixtureRequest) -> str:
    """How values travel."""
    return str(request.param)


Run = Callable[..., str]


@pytest.fixture
def run() -> Run:
    """Run code in a process of its own, with folders before its path and variables; what it printed."""

    def run(code: str, *words: str, path: Sequence[object] = (), **variables: str) -> str:
        places = os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *words],
            env={**os.environ, "PYTHONPATH": places, **variables},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A running server."""
    with running_server(listen=f"unix://{tmp_path}/dataplane.sock") as address:
        yield address


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Lives]:
    """A running server, whose rows are there again in its next life."""
    with Lives(tmp_path, tmp_path / "data", "--memory", "64MiB", "--durability", "process") as server:
        assert server.begin() is None, server.log
        yield server


@pytest.fixture
def client(address: str) -> Iterator[DataPlaneClient]:
    """Our own client, to see what the adapter did."""
    with connect(address, timeout_s=200.0) as client:
        yield client

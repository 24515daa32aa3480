"""Whatever becomes of the server and its clients, no row, claim or commit that was acknowledged is lost or doubled."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.histories.campaign import judged, run, table
from tests.integration.histories.mortal_server import MortalServer
from tests.integration.histories.settings import Settings

_SHOWN = 40


@pytest.fixture
def data(durability: str) -> Iterator[Path]:
    """A directory on disk, or one in memory, as that of a pod's volume, if there is room."""
    memory = Path("/dev/shm")  # noqa: S108  # where there is one
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    folder = Path(tempfile.mkdtemp(prefix="dataplane", dir=memory if roomy and durability == "process" else None))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", ["process", "disk"])
@pytest.mark.parametrize(
    ("processes", "seconds"), [(8, 6.0), pytest.param(16, 600.0, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_no_row_is_lost_or_doubled_when_server_and_clients_are_killed(
    tmp_path: Path, data: Path, durability: str, processes: int, seconds: float
) -> None:
    with MortalServer(tmp_path, data, "--durability", durability) as server:
        settings = Settings.chosen(server.address, tmp_path / "histories", processes, seconds)
        server.kill_often(settings.seed, 0.2, 1.5, settings.seconds)
        history = run(settings)
        server.spare()
        found, counts = judged(history, settings, server.log)
    counts["kills of the server"] = server.kills
    sys.stdout.write(table(counts, settings))
    assert found[:_SHOWN] == []
    assert [name for name in ("kills of the server", "kills", "commits", "releases") if not counts[name]] == []
    assert len(server.recoveries) == server.kills

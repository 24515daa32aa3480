"""Whatever becomes of the server and its clients, no row, claim or commit that was acknowledged is lost or doubled."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.histories import crash
from tests.integration.histories.campaign import table, until_enough
from tests.integration.histories.settings import Settings

_SHOWN = 40
_ENOUGH = ("kills of working lives", "kills", "commits", "releases")


@pytest.fixture
def data(durability: str) -> Iterator[Path]:
    """A directory on disk, or one in memory, as that of a pod's volume, if there is room."""
    memory = Path("/dev/shm")  # noqa: S108  # where there is one
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    folder = Path(tempfile.mkdtemp(prefix="dataplane", dir=memory if roomy and durability == "process" else None))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", ["process", pytest.param("disk", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("processes", "seconds"), [(8, 6.0), pytest.param(16, 600.0, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_no_row_is_lost_or_doubled_when_server_and_clients_are_killed(
    tmp_path: Path, data: Path, durability: str, processes: int, seconds: float
) -> None:
    def one_round(number: int) -> Counter[str]:
        folder = tmp_path / str(number)
        folder.mkdir()
        settings = Settings.chosen(f"unix://{folder}/s", folder / "histories", processes, seconds, seed=number + 1)
        counts = crash.one_round(folder, data / str(number), durability, settings)
        sys.stdout.write(table(counts, settings))
        assert (settings.folder / "violations").read_text().splitlines()[:_SHOWN] == []
        return counts

    until_enough(_ENOUGH, one_round)

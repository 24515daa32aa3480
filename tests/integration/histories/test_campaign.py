"""Whatever becomes of its clients, the server neither loses a row nor gives it to two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.integration.histories.campaign import judged, run, table
from tests.integration.histories.settings import Settings

_SHOWN = 40


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("processes", "seconds"), [(8, 8.0), pytest.param(32, 600.0, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_no_row_is_lost_or_doubled_when_clients_are_killed_and_stopped(
    address: str, tmp_path: Path, processes: int, seconds: float
) -> None:
    settings = Settings.chosen(address, tmp_path / "histories", processes, seconds)
    found, counts = judged(run(settings), settings)
    sys.stdout.write(table(counts, settings))
    assert found[:_SHOWN] == []
    assert [name for name in ("kills", "stops longer than the grace", "commits", "releases") if not counts[name]] == []

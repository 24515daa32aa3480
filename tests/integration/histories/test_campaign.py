"""Whatever becomes of its clients, the server neither loses a row nor gives it to two."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.integration.histories.campaign import figures, run, table
from tests.integration.histories.checker import violations
from tests.integration.histories.counters import disagreements
from tests.integration.histories.settings import Settings

_SHOWN = 40


def settings(address: str, folder: Path, processes: int, seconds: float) -> Settings:
    """HISTORIES_PROCESSES, _SECONDS, _GRACE and _SEED of the environment replace what the test wants."""
    chosen = os.environ.get
    folder.mkdir(exist_ok=True)
    return Settings(
        address,
        folder,
        int(chosen("HISTORIES_PROCESSES", str(processes))),
        float(chosen("HISTORIES_SECONDS", str(seconds))),
        float(chosen("HISTORIES_GRACE", "1.0")),
        int(chosen("HISTORIES_SEED", "1")),
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("processes", "seconds"), [(8, 8.0), pytest.param(32, 600.0, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_no_row_is_lost_or_doubled_when_clients_are_killed_and_stopped(
    address: str, tmp_path: Path, processes: int, seconds: float
) -> None:
    wanted = settings(address, tmp_path / "histories", processes, seconds)
    history = run(wanted)
    found = [*map(str, violations(history)), *disagreements(history)]
    counts = {**figures(history, wanted), "violations": len(found)}
    sys.stdout.write(table(counts, f"{wanted.processes} processes, {wanted.seconds:g} s, seed {wanted.seed}"))
    (wanted.folder / "violations").write_text("\n".join(found))
    assert found[:_SHOWN] == []
    assert [name for name in ("kills", "stops longer than the grace", "commits", "releases") if not counts[name]] == []

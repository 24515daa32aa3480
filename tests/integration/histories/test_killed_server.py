"""Whatever becomes of the server and its clients, no row, claim or commit that was acknowledged is lost or doubled."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.integration.histories import crash
from tests.integration.histories.campaign import table, until_enough
from tests.integration.histories.settings import Settings

_SHOWN = 40
_ENOUGH = ("kills of working lives", "kills", "commits", "releases")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", ["process", pytest.param("disk", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("processes", "seconds"), [(8, 6.0), pytest.param(16, 600.0, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_no_row_is_lost_or_doubled_when_server_and_clients_are_killed(
    tmp_path: Path, durability: str, processes: int, seconds: float
) -> None:
    def one_round(number: int) -> Counter[str]:
        folder = tmp_path / str(number)
        folder.mkdir()
        settings = Settings.chosen(f"unix://{folder}/s", folder / "histories", processes, seconds, seed=number + 1)
        with crash.data_folder(durability) as data:
            counts = crash.one_round(folder, data, durability, settings)
        sys.stdout.write(table(counts, settings))
        assert (settings.folder / "violations").read_text().splitlines()[:_SHOWN] == []
        return counts

    until_enough(_ENOUGH, one_round)

"""Whatever becomes of its clients, the server neither loses a row nor gives it to two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.integration.histories.campaign import judged, run, table, until_enough
from tests.integration.histories.settings import PARTITION, Settings

from dataplane_client.client import connect

_SHOWN = 40
_ENOUGH = ("kills", "stops longer than the grace", "commits", "releases")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("processes", "seconds"),
    [pytest.param(8, 8.0, marks=pytest.mark.long), pytest.param(32, 600.0, marks=pytest.mark.soak)],
    ids=["short", "long"],
)
def test_no_row_is_lost_or_doubled_when_clients_are_killed_and_stopped(
    address: str, tmp_path: Path, processes: int, seconds: float
) -> None:
    def one_round(number: int) -> dict[str, int]:
        with connect(address) as client:
            client.drop_partition(PARTITION)  # of the round before
        settings = Settings.chosen(address, tmp_path / str(number), processes, seconds, seed=number + 1)
        found, counts = judged(run(settings), settings)
        sys.stdout.write(table(counts, settings))
        assert found[:_SHOWN] == []
        return counts

    until_enough(_ENOUGH, one_round)

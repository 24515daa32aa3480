"""Rows of a loader whose process is killed: the other loaders of the task deliver them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests import commands
from tests.integration.loader.conftest import Loader, claimed, fill

from dataplane_client.client import DataPlaneClient

SCRIPT = Path(__file__).parent / "doomed_loader.py"


@pytest.mark.long
def test_rows_of_a_killed_loader_come_again_and_no_row_is_lost_or_committed_twice(
    loader: Loader, address: str, client: DataPlaneClient
) -> None:
    fill(client, 100)
    with commands.begin([sys.executable, str(SCRIPT), address], stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        held = json.loads(doomed.stdout.readline())
        survivor = iter(loader(4))
        batches = [next(survivor)]
        doomed.kill()
    batches += survivor
    delivered = {
        sample_id: deliveries
        for batch in batches
        for sample_id, deliveries in zip(batch.meta.sample_ids, batch.deliveries, strict=True)
    }
    assert Counter(sample_id for batch in batches for sample_id in batch.meta.sample_ids) == Counter(
        f"s{number}" for number in range(100)
    )
    assert {delivered[sample_id] for sample_id in held} == {2}
    assert client.partition("p").task("train").ended_deliveries["committed"] == 100
    assert claimed(client) == 0

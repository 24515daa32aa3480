"""A torch DataLoader over a ClaimLoader: each row once, and an end, in any order of its workers."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests import commands
from tests.integration.loader.conftest import fill

from dataplane_client.client import DataPlaneClient

SCRIPT = Path(__file__).parent / "data_loader.py"


def load(address: str, *arguments: object) -> tuple[list[str], int, str]:
    """What a DataLoader in a process of its own loads; see data_loader.py."""
    command = [sys.executable, str(SCRIPT), address, *map(str, arguments)]
    done = commands.run(command)
    assert done.returncode == 0, done.stderr
    sample_ids, total, refusal = json.loads(done.stdout)
    return sample_ids, total, refusal


def test_a_data_loader_with_4_workers_sees_each_of_2000_rows_once(address: str, client: DataPlaneClient) -> None:
    fill(client, 2000)
    sample_ids, total, refusal = load(address, 4, 64, 2)
    assert Counter(sample_ids) == Counter(f"s{number}" for number in range(2000))
    assert total == sum(range(2000))
    assert "another process" in refusal
    assert client.check_consumption_status("p", ["train"])


@pytest.mark.long
def test_a_data_loader_ends_when_its_first_worker_finds_all_rows_claimed_by_the_second(
    address: str, client: DataPlaneClient
) -> None:
    # A DataLoader waits for its workers in order. The second one claims all rows, hands the first batch over, and
    # commits it only when it is asked again, which is after the first one has answered.
    fill(client, 12)
    sample_ids, _, _ = load(address, 2, 4, 1, "--last-worker-first")
    assert Counter(sample_ids) == Counter(f"s{number}" for number in range(12))
    assert client.check_consumption_status("p", ["train"])


@pytest.mark.long
def test_rows_of_a_killed_data_loader_worker_come_again_in_the_next_iteration(
    address: str, client: DataPlaneClient
) -> None:
    fill(client, 200)
    sample_ids, _, error = load(address, 2, 4, 1, "--kill-worker")
    assert "killed by signal" in error
    assert set(sample_ids) == {f"s{number}" for number in range(200)}
    assert client.check_consumption_status("p", ["train"])

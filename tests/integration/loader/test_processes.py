"""Processes that die, and those of a torch DataLoader: no row is lost, none comes twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dataplane_client.client import DataPlaneClient
from dataplane_client.loader import ClaimLoader
from dataplane_client.loader._nursery import Nursery

Loader = Callable[..., ClaimLoader]
Rows = Callable[[int], None]
Eventually = Callable[[Callable[[], object]], None]
FOLDER = Path(__file__).parent


def test_rows_of_a_worker_that_is_killed_come_again_and_no_row_is_lost_or_seen_twice(
    fill: Rows, loader: Loader, client: DataPlaneClient, caplog: pytest.LogCaptureFixture
) -> None:
    fill(10_000)
    rows = iter(loader(64, num_workers=4))
    seen: Counter[str] = Counter()
    deliveries: Counter[int] = Counter()
    for taken, batch in enumerate(rows):
        seen.update(batch.meta.sample_ids)
        deliveries.update(batch.deliveries)
        if taken == 40:
            os.kill(rows.worker_pids[0], signal.SIGKILL)
    assert seen == Counter(f"s{number}" for number in range(10_000))
    assert rows.restarts == 1
    assert "loader_worker_died" in caplog.text
    ended = client.partition("p").task("train").ended_deliveries
    assert ended["committed"] == 10_000
    assert deliveries[2] == ended.get("expired", 0) <= 2 * 64


def test_a_batch_that_was_handed_over_is_not_lost_with_its_worker(
    fill: Rows, loader: Loader, client: DataPlaneClient, claimed: Callable[[], int], eventually: Eventually
) -> None:
    fill(64)
    rows = iter(loader(8, num_workers=1))
    batch = next(rows)
    eventually(lambda: claimed() == 24)  # one at hand, two ahead
    (pid,) = rows.worker_pids
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: client.partition("p").task("train").ended_deliveries.get("expired", 0) == 16)
    assert batch.commit() == 8
    seen = Counter(sample_id for later in rows for sample_id in later.meta.sample_ids)
    assert seen == Counter(f"s{number}" for number in range(64)) - Counter(batch.meta.sample_ids)
    assert rows.dropped_batches in (1, 2)  # the second may have been claimed, and not yet sent


def test_workers_that_keep_dying_end_the_loop_with_an_error(announce: Rows, loader: Loader) -> None:
    announce(1)
    rows = iter(loader(1, num_workers=1, idle_timeout_s=0.05))
    killed: set[int] = set()

    def kill() -> None:
        for pid in set(rows.worker_pids) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        try:
            next(rows)
        except TimeoutError:
            return

    with pytest.raises(RuntimeError, match="11 worker processes of a loader have died"):
        _for_ever(kill)
    assert (len(killed), rows.restarts) == (11, 10)


def _for_ever(call: Callable[[], None]) -> None:
    while True:
        call()


def test_a_nursery_that_was_killed_is_begun_anew_when_a_worker_is_wanted(eventually: Eventually) -> None:
    nursery = Nursery()
    first = nursery.process_id
    os.kill(first, signal.SIGKILL)
    eventually(lambda: Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    nursery.fork().close()
    assert nursery.process_id != first
    os.kill(nursery.process_id, signal.SIGKILL)
    nursery.close()


def test_workers_end_with_the_process_that_they_load_for_and_all_that_it_held_comes_again(
    fill: Rows, address: str, client: DataPlaneClient, eventually: Eventually
) -> None:
    fill(100)
    command = [sys.executable, str(FOLDER / "doomed_loader.py"), address, "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        pids, at_hand = json.loads(doomed.stdout.readline())
        doomed.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    eventually(lambda: client.partition("p").task("train").claimed_rows == 0)
    left = client.claim("p", "train", [], 100, min_size=1, timeout_s=0)
    assert set(at_hand) < set(left.meta.sample_ids)
    assert left.meta.size + client.partition("p").task("train").consumed_rows == 100
    assert {left.deliveries[left.meta.sample_ids.index(sample_id)] for sample_id in at_hand} == {2}

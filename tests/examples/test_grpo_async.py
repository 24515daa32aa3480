"""The asynchronous example as a whole, with a model that answers random digits, in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.training.mortal_processes import Killer, MortalProcesses
from tests.integration.training.small_task import make_task

import async_flow
import run_async
from dataplane_client import connect
from flow import ROLLOUTS
from run import SUMMARY
from settings import GrpoSettings

pytestmark = pytest.mark.xdist_group("ranks")

STEPS = 6
_UNFINISHED = "end_weight_version is null"


class WithOneKill(MortalProcesses):
    """Forked processes. The first generator is killed once, at a moment at which it has reserved groups."""

    killed: int | None = None

    def __init__(self, logs: Path, variables: dict[str, str]) -> None:
        super().__init__(logs, variables, Killer((), STEPS))

    def _reap(self) -> None:
        self._await(self._kill_a_holder)

    def _kill_a_holder(self) -> bool:
        if "generator0" not in self._running:
            return False
        with connect(f"unix://{self._logs}/dataplane.sock") as client:
            for process in {int(name.split("-")[1]) for name in self._held(client)}:
                with self._stopped(process):
                    if self._held(client):
                        os.kill(process, signal.SIGKILL)
                        type(self).killed = process
        return self.killed is not None

    @staticmethod
    def _held(client: Any) -> list[str]:
        page = client.list_samples(ROLLOUTS, where=_UNFINISHED)
        return [name for name in page.meta.sample_ids if name.startswith("generator0-")]

    @staticmethod
    @contextlib.contextmanager
    def _stopped(process: int) -> Iterator[None]:
        os.kill(process, signal.SIGSTOP)
        yield
        os.kill(process, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_generator_that_is_killed_leaves_the_account_in_balance_and_no_row_is_trained_too_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, problems = make_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    task = [
        "--model",
        model.relative_to(tmp_path),
        "--prompts",
        problems,
        "--dp",
        1,
        "--steps",
        STEPS,
        "--out",
        tmp_path / "run",
    ]
    assert run_async.main([str(word) for word in task], WithOneKill) == 0
    assert WithOneKill.killed is not None
    summary = json.loads((tmp_path / "run" / SUMMARY).read_text())
    rows, settings = summary["rows"], GrpoSettings()
    assert rows.pop("put") == sum(rows.values())
    assert rows["consumed"] == STEPS * settings.prompts_per_step * settings.group_size
    assert rows["rolled_back"] >= settings.group_size
    assert sum(summary["staleness"].values()) == rows["consumed"]
    assert {int(versions) for versions in summary["staleness"]} <= set(range(async_flow.MAX_STALENESS + 1))
    assert len(summary["rewards"]) == STEPS

"""Whatever is killed, training goes on as if nothing had been: each prompt is trained once an epoch, and the losses are
those of a run without kills.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.training.mortal_processes import VICTIMS, AllKilledError, Killer
from tests.integration.training.small_task import make_task

import run
from processes import ProcessLostError
from settings import GrpoSettings

pytestmark = pytest.mark.xdist_group("ranks")

SETTINGS = GrpoSettings()
Ledger = list[dict[str, Any]]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    model, problems = make_task(tmp_path_factory.mktemp("task"))
    return ["--model", model, "--prompts", problems, "--dp", 1, "--reproducible", "--checkpoint-every", 2, "--figures"]


def trained(folder: Path, task: Sequence[object], steps: int, victims: Sequence[str] = ()) -> Ledger:
    """The ledger of a run in which these were killed."""
    killer = Killer(victims, steps)
    arguments = [*map(str, [*task, "--steps", steps, "--out", folder]), "--resume"]
    while True:
        try:
            assert run.main(arguments, killer.processes) == 0
            break
        except (AllKilledError, ProcessLostError):  # the second before there is a checkpoint
            continue
    assert killer.left == []
    ledger: Ledger = json.loads((folder / "checkpoints" / str(steps) / "ledger.json").read_text())
    return ledger


def lost_or_doubled(ledger: Ledger) -> Ledger:
    """Steps that did not use each of their own prompts once, with all its rollouts. An epoch of prompts has each
    problem once, see tests/examples/test_problem_file.py.
    """
    size, rows = SETTINGS.prompts_per_step, SETTINGS.group_size
    return [
        entry
        for step, entry in enumerate(ledger)
        if entry["step"] != step
        or Counter(entry["rows"]) + Counter(dict.fromkeys(entry["dropped"].split(), rows))
        != Counter({f"p{number}": rows for number in range(max(0, step - 1) * size, step * size)})
    ]


def test_a_run_is_resumed_only_where_its_rows_were_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--resume"])
    assert "--checkpoint-every" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.long
def test_two_kills_change_nothing(tmp_path: Path, task: list[object]) -> None:
    plain = trained(tmp_path / "plain", task, 4)
    killed = trained(tmp_path / "killed", task, 4, ["trainer", "server"])
    assert lost_or_doubled(killed) == []
    assert killed == plain
    assert any(entry["rows"] for entry in plain)
    figures = [json.loads(line) for line in (tmp_path / "plain" / "figures.jsonl").read_text().splitlines()]
    assert [line["step"] for line in figures] == [entry["step"] for entry in plain if entry["rows"]]
    assert all(line["dataplane/logprobs/count"] > 0 for line in figures)
    further = trained(tmp_path / "plain", task, 6)  # the server of a run that has ended says so to generators
    assert lost_or_doubled(further) == []
    assert further[: len(plain)] == plain


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_kills_change_nothing(tmp_path: Path, task: list[object]) -> None:
    kills = int(os.environ.get("CRASH_KILLS", "30"))
    steps = 4 * kills
    victims = random.Random(kills).choices(VICTIMS, k=kills)
    plain = trained(tmp_path / "plain", task, steps)
    killed = trained(tmp_path / "killed", task, steps, victims)
    sys.stdout.write(f"\nkills: {dict(Counter(victims))}; {steps} steps of {SETTINGS.prompts_per_step} prompts\n")
    assert lost_or_doubled(killed) == []
    assert killed == plain
    assert len({entry["loss"] for entry in plain}) > 1

"""The example on a local Ray cluster of three nodes, with a model that answers random digits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.training.small_task import make_task

import run

pytest.importorskip("ray")

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray")]

_VARIABLES = {"RAY_prestart_worker_first_driver": "0"}  # otherwise Ray begins with a process for each CPU


@pytest.mark.timeout(1800)
def test_on_a_cluster_every_row_is_accounted_for_and_each_node_puts_and_fetches(tmp_path: Path) -> None:
    model, problems = make_task(tmp_path)
    task = ["--model", model, "--prompts", problems, "--dp", "1", "--steps", "3", "--out", tmp_path / "run"]
    command = [sys.executable, run.__file__, "--cluster", *map(str, task)]
    played = subprocess.run(command, env=os.environ | _VARIABLES, stdout=subprocess.PIPE, text=True, check=True)
    assert "every row accounted for" in played.stdout
    nodes = json.loads((tmp_path / "run" / run.SUMMARY).read_text())["nodes"]
    assert [node["up"] for node in nodes] == [True] * 3
    assert all(node["written_bytes"] and node["fetched_bytes"] for node in nodes), "of each: prompts, or rollouts"
    trainer = max(nodes, key=lambda node: node["fetched_bytes"])
    assert trainer["cache_hit_bytes"] > 0, "the two stages of a step read the same columns"

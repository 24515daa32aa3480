"""The table of figures in docs/observability.md has those that are computed."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import dataplane_training_figures as training

PAGE = (Path(__file__).parents[3] / "docs" / "observability.md").read_text()


def test_the_table_of_figures_matches_what_is_computed() -> None:
    ones = dict.fromkeys(training.FIELDS, torch.ones(1, 1)) | {"reward": torch.ones(1)}
    with training.StepClock() as clock:
        metrics = training.figures_of(ones, longest=1).as_metrics() | clock.lap().as_metrics()
    rows = PAGE.split("| figures, after `dataplane/` |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    listed = re.findall(r"`([\w/]+)`", " ".join(row.split("|")[1] for row in rows))
    assert sorted(f"dataplane/{name}" for name in listed) == sorted(metrics)

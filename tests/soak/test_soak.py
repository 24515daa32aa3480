"""What a soak finds of curves that grow, and a short soak, of which nothing is to be found."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.soak.verdict import Measure, fit, is_flat

_ROOT = Path(__file__).parents[2]
_MEMORY = Measure("memory", "MiB", 8.0)

CURVES: dict[str, tuple[Callable[[float], float], bool]] = {
    "that stays": (lambda _: 80.0, True),
    "that grows in the warm-up only": (lambda minute: min(minute, 9.0) * 50, True),
    "that goes up and down": (lambda minute: 80 + 10 * (minute % 3), True),
    "that falls": (lambda minute: 200 - minute, True),
    "that grows by 6 MiB in 20 minutes": (lambda minute: 80 + minute * 6 / 20, True),
    "that grows by 10 MiB in 20 minutes": (lambda minute: 80 + minute * 10 / 20, False),
    "that grows and goes up and down": (lambda minute: 80 + 10 * (minute % 3) + minute, False),
}


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_judged(name: str) -> None:
    curve, flat = CURVES[name]
    seconds = [5.0 * number for number in range(361)]
    found = fit(seconds, [curve(second / 60) for second in seconds])
    assert is_flat(found, _MEMORY) is flat, found


@pytest.mark.soak
def test_a_short_soak_is_flat(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", "0.5", "--out", str(tmp_path / "curves.csv")]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, encoding="utf-8", timeout=500, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with (tmp_path / "curves.csv").open(newline="") as file:
        curves = list(csv.DictReader(file))
    assert {"server", "producer-shm", "scraper", "doomed-rows"} <= {row["process"] for row in curves}
    assert len({row["pid"] for row in curves if row["process"] == "doomed-rows"}) > 1

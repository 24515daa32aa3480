"""A server that dies in simulated ways loses and doubles nothing; a seed repeats itself; the simulation finds bugs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tests.simulate.bugs import BUGS
from tests.simulate.simulation import simulate

_MARKS: dict[str, Any] = {
    "two lives have one number": pytest.mark.long,
    "answers leave before the sync": pytest.mark.long,
    "the log is not synced": pytest.mark.long,
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_nothing_that_was_answered_is_lost(seed: int) -> None:
    counts = simulate(seed, 400).counts
    assert counts["events"] >= 400
    assert counts["beginnings"] > 0


def test_a_seed_repeats_itself_whatever_the_hashes_of_strings() -> None:
    program = (
        "from tests.simulate.simulation import simulate; found = simulate(3, 100); print(found.trace, found.state)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PATH": ""}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", [pytest.param(name, marks=_MARKS.get(name, pytest.mark.soak)) for name in BUGS])
def test_a_bug_is_found_within_the_seeds_that_it_needs(bug: str) -> None:
    command = [sys.executable, "-m", "tests.simulate", "--bug", bug, "--seeds", str(BUGS[bug].seeds)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "found by seed" in found.stdout, found.stderr[-2000:]

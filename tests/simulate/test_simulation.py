"""A server that dies in simulated ways loses and doubles nothing; a seed repeats itself.

`tests/mutants/dying.txt` has the bugs that the simulation finds.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.simulate.simulation import simulate


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

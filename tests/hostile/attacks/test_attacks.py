"""The list of attacks, and one of them for a second."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile.attacks.measuring import outcome_of

_ROOT = Path(__file__).parents[3]
_LONGEST_S = 20.0


@pytest.mark.long
def test_a_server_under_attack_stays_up_within_its_memory_and_serves_others(tmp_path: Path) -> None:
    found = outcome_of("half calls", 1.0, tmp_path)
    assert found.steps > 0
    assert found.during.calls
    assert max(found.during.calls) < _LONGEST_S
    assert found.wrong(alone_ms=1e3 * _LONGEST_S) == []  # waits of a busy machine's tests are no figures


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_server_stays_up_and_prompt_under_each_attack() -> None:
    command = [sys.executable, "-m", "tests.hostile.attacks", "--seconds", "5"]
    done = subprocess.run(command, cwd=_ROOT, check=False, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout

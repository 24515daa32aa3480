"""`make test-matrix` says what it cannot do: nothing that was not tried counts as passed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "test_matrix.py"
OTHER = "python-3.12" if sys.version_info[:2] == (3, 13) else "python-3.13"


def test_an_unknown_environment_is_refused_with_the_names() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "nope"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "no environment nope; there are tensordict-0.10.0, tensordict-0.12.2, newest, " in done.stderr


def test_an_environment_that_cannot_be_had_is_not_here_and_not_passed(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path), OTHER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env={"PATH": "/none"})
    assert done.returncode == 0, done.stderr
    assert f"{OTHER}        not here: no {OTHER.replace('-', '')} on the PATH\n" in done.stdout
    assert "passed" not in done.stdout

"""The script that derives the blocking client, run on small packages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "client" / "dataplane_client" / "_verbs" / "_async"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the asynchronous client, without twins."""
    shutil.copytree(REAL, tmp_path / "_async", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "_sync").mkdir()
    return tmp_path


def run_unasync(package: Path, *flags: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "scripts" / "unasync.py"), *flags, str(package)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def test_twins_are_derived_and_then_up_to_date_and_a_replacement_that_matches_nowhere_is_an_error(
    package: Path,
) -> None:
    assert [run_unasync(package, *flags)[0] for flags in (("--check",), ())] == [1, 0]
    assert run_unasync(package, "--check") == (0, "")
    assert "async def" not in (package / "_sync" / "transport.py").read_text()
    for source in (package / "_async").glob("*.py"):
        source.write_text(re.sub(r"\bopen_aio_channel\b", "open_channel", source.read_text()))
    code, output = run_unasync(package, "--check")
    assert (code, output.count("matches nothing"), "open_aio_channel" in output) == (1, 1, True)

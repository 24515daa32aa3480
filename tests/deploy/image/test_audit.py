"""The audit of pinned requirements: what pip-audit answers decides, and no answer is not a good one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.image.test_recipe import IMAGE

CLEAN: dict[str, Any] = {"name": "one", "version": "1.0", "vulns": []}
BAD = {"name": "two", "version": "2.0", "vulns": [{"id": "GHSA-1", "fix_versions": ["2.1"]}]}
NOT_FOUND = {"name": "three", "skip_reason": "not found on PyPI"}
# Error that pip-audit 2.10 ends with where OSV cannot be reached
UNREACHABLE = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.osv.dev', port=443)"


@pytest.mark.parametrize(
    ("pypi", "osv", "code", "last_line"),
    [
        ([CLEAN], None, 0, "pins.txt: 1 packages, 0 vulnerable"),
        ([CLEAN, BAD], None, 1, "pins.txt: 2 packages, 1 vulnerable"),
        ([CLEAN, NOT_FOUND], None, 3, "pins.txt: 2 packages, 0 vulnerable, not found: three"),
        ([BAD, NOT_FOUND], None, 1, "pins.txt: 2 packages, 1 vulnerable, not found: three"),
        ([NOT_FOUND], [CLEAN], 0, "pins.txt: 1 packages, 0 vulnerable"),
        (
            [NOT_FOUND],
            None,
            3,
            "pins.txt: not audited, no advisories can be had (pypi: none of 1 packages found; "
            "osv: requests.exceptions.ConnectionError: HTTPSConnectionPool)",
        ),
    ],
)
def test_the_code_and_the_last_line_tell_what_is_known(
    tmp_path: Path, pypi: list[Any] | None, osv: list[Any] | None, code: int, last_line: str
) -> None:
    done = _audit(tmp_path, {"pypi": pypi, "osv": osv}, ["pins.txt"])
    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, last_line)


def test_a_vulnerable_package_is_named_with_the_version_that_mends_it(tmp_path: Path) -> None:
    done = _audit(tmp_path, {"pypi": [BAD], "osv": None}, ["a.txt", "b.txt"])
    assert [line for line in done.stdout.splitlines() if "GHSA" in line] == [
        f"{file}: two 2.0: GHSA-1 (fixed in 2.1)" for file in ("a.txt", "b.txt")
    ]


def _audit(folder: Path, answers: dict[str, list[Any] | None], files: list[str]) -> subprocess.CompletedProcess[str]:
    """With a program in place of pip-audit, which needs a network, that gives these answers; None is an error."""
    for service, packages in answers.items():
        if packages is not None:
            (folder / service).write_text(json.dumps({"dependencies": packages, "fixes": []}))
    stand_in = folder / "pip-audit"
    stand_in.write_text(f"""#!/bin/sh\ncat "{folder}/$2" 2>/dev/null || {{ echo "{UNREACHABLE}" >&2; exit 1; }}\n""")
    stand_in.chmod(0o755)
    command = [sys.executable, str(IMAGE / "audit.py"), str(stand_in), *files]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)

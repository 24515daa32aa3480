"""Fuzzes one target with atheris, or each of them in turn: needs `pip install --group fuzz`.

    python -m tests.hostile.fuzz frame --seconds 600
    python -m tests.hostile.fuzz all --seconds 60

Only our packages are instrumented. Each minute has a process of its own, because atheris keeps some memory for every
execution of instrumented code (10 KB for a request). What libFuzzer finds on its way is in build/fuzz/NAME, and later
minutes begin with it. An input that shows a defect, takes 10 s or needs 1 GiB ends the run and becomes a file of the
corpus, `crash-...`, so `make test` knows it from then on. The last lines of a minute tell its executions
(stat::number_of_executed_units) and coverage (cov).
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ["rl_dataplane", "dataplane_server", "dataplane_client"]
_FOUND = Path(__file__).parents[3] / "build" / "fuzz"
_ROUND_S = 60
_LONGEST_BYTES = 16 << 10
_SLOWEST_S = 10
_MOST_MIB = 1024


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.hostile.fuzz", description="Fuzz what reads bytes of others.")
    parser.add_argument("name", help="a target; all for each in turn")
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    if given.here:
        return _fuzz(given.name, given.seconds)
    return max(_minutes(name, given.seconds) for name in _names(given.name))


def _names(name: str) -> list[str]:
    from tests.hostile.fuzz.targets import TARGETS

    return list(TARGETS) if name == "all" else [name]


def _minutes(name: str, seconds: int) -> int:
    """The first exit status that is not 0, or 0."""
    for left in range(seconds, 0, -_ROUND_S):
        command = [sys.executable, "-m", "tests.hostile.fuzz", name, "--here", "--seconds", str(min(left, _ROUND_S))]
        if status := subprocess.run(command, check=False).returncode:
            return status
    return 0


def _fuzz(name: str, seconds: int) -> int:
    """Does not return: libFuzzer ends the process."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=_PACKAGES):
        from tests.hostile.fuzz.targets import CORPUS, TARGETS, corpus
    found = _FOUND / name
    for folder in (found, CORPUS / name):
        folder.mkdir(parents=True, exist_ok=True)
    for known, data in corpus(name).items():
        (found / known).write_bytes(data)
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={_LONGEST_BYTES}",
        f"-timeout={_SLOWEST_S}",
        f"-rss_limit_mb={_MOST_MIB}",
        f"-artifact_prefix={CORPUS / name}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *flags, str(found)], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())

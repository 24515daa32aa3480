"""Runs the tests that a mutant names, and says whether they found it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from tests.mutants.source_copy import SourceCopy

_FAILED = re.compile(r"^(?:FAILED|ERROR) ((?:tests|integrations)/.+?)(?: - |$)", re.MULTILINE)
_SEED = re.compile(r"^found by (seed \d+)$", re.MULTILINE)
_EVENTS = 1000  # of each seed
_SEED_S = 30.0
"""For a seed, on a busy machine. A simulation that takes longer has found nothing."""
_SOUND_SEEDS = 8
"""Seeds that are run without a fault; `make simulate` runs thousands."""


class Verdict(NamedTuple):
    """found_by: the first test that failed; empty if none did. error: why there is no verdict, with the output."""

    seconds: float
    found_by: str = ""
    error: str = ""


def look(copy: SourceCopy, where: Sequence[str], timeout_s: float) -> Verdict:
    """Look for the fault that a copy has. A run that takes longer than timeout_s counts as one that found it."""
    began = time.monotonic()
    simulates = where[0] == "simulate"
    if simulates:
        code, output = copy.run(_simulation(int(where[1])), _SEED_S * int(where[1]))
    else:
        code, output = copy.test([*_arguments(copy), *where, "-x"], timeout_s)
    seconds = time.monotonic() - began
    if code is None and not simulates:
        return Verdict(seconds, f"the time limit of {timeout_s:g} s, in {_last_line(output)}")
    if code == 0:
        return Verdict(seconds)
    if simulates:
        seed = _SEED.search(output)
        return Verdict(seconds, f"tests.simulate, {seed[1]}") if seed else Verdict(seconds, error=output)
    failed = _FAILED.search(output)
    if code == pytest.ExitCode.TESTS_FAILED and failed:
        return Verdict(seconds, failed[1])
    if code is not None and code < 0:
        return Verdict(seconds, f"the end of the process by signal {-code}")
    return Verdict(seconds, error=output)  # nothing was collected, or the fault broke an import


def check_sound(copies: Sequence[SourceCopy], wheres: Sequence[tuple[str, ...]]) -> str:
    """Run all tests of many mutants once, without a fault. Returns the output if one of them fails."""
    paths = sorted(
        {path for where in wheres if where[0] != "simulate" for path in where}
    )  # folder by folder, as pytest
    part = -(-len(paths) // len(copies))  # looks up fixtures
    shares = [paths[number * part : (number + 1) * part] for number in range(len(copies))]

    def of_share(copy: SourceCopy, share: list[str]) -> tuple[int | None, str]:
        return copy.test([*_arguments(copy), *share], None) if share else (0, "")

    with ThreadPoolExecutor(len(copies)) as pool:
        outcomes = list(pool.map(of_share, copies, shares))
    if any(where[0] == "simulate" for where in wheres):
        outcomes.append(copies[0].run(_simulation(_SOUND_SEEDS), None))
    return "\n".join(output for code, output in outcomes if code)


def _arguments(copy: SourceCopy) -> list[str]:
    folder = f"--basetemp={copy.scratch / 'b'}"  # a short name, since a socket's path has 107 bytes at most
    plugins = ["-p", "no:cacheprovider", "-p", "tests.mutants.unshrunk"]
    imported = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]  # by the zygote
    marks = ["-m", "not soak and not automodel and not frameworks and not image and not cluster"]
    return ["-q", *plugins, *imported, *marks, "--tb=line", folder]


def _simulation(seeds: int) -> list[str]:
    return ["-m", "tests.simulate", "--seeds", str(seeds), "--events", str(_EVENTS), "--until-found"]


def _last_line(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "no test")

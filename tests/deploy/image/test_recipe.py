"""The recipe of the server's root: its pins are those of the distribution, its script is one that bash takes."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tests.deploy.image.dockerfile import REPOSITORY

IMAGE = REPOSITORY / "deploy" / "image"
SCRIPT = IMAGE / "build_root.sh"
ONLY_OF_TRAINERS = {"tensordict", "torch"}


def test_the_direct_requirements_are_the_distributions_without_torch() -> None:
    lines = (IMAGE / "requirements.in").read_text().splitlines()
    listed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert {_name(r): r.specifier for r in listed} == {_name(r): r.specifier for r in _wanted()}


def test_every_requirement_is_pinned_to_a_version_that_satisfies_it() -> None:
    pins = pinned()
    assert not ONLY_OF_TRAINERS & set(pins)
    for requirement in _wanted():
        assert requirement.specifier.contains(pins[_name(requirement)]), requirement


def test_every_pin_has_hashes() -> None:
    blocks = re.split(r"\n(?=\w)", (IMAGE / "requirements.txt").read_text())
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks if "==" in block)


def test_the_script_is_one_that_bash_takes() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True, timeout=30)
    assert SCRIPT.stat().st_mode & 0o111


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_has_nothing_that_shellcheck_warns_of() -> None:
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_script_refuses_to_run_without_a_destination() -> None:
    done = subprocess.run([SCRIPT], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr == "build_root.sh: usage: build_root.sh DESTINATION\n"


def pinned() -> dict[str, Version]:
    """Versions by normalized name."""
    found = re.findall(r"^([\w.-]+)==(\S+)", (IMAGE / "requirements.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def _wanted() -> list[Requirement]:
    text = (REPOSITORY / "pyproject.toml").read_text()
    lists = (
        re.search(rf"^{name} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL) for name in ("dependencies", "server")
    )
    lines = [line for found in lists if found for line in re.findall(r'^\s+"([^"]+)"', found[1], re.MULTILINE)]
    return [r for r in map(Requirement, lines) if r.name not in ONLY_OF_TRAINERS]


def _name(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)

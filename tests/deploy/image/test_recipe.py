"""The recipes of the images: their pins are those of the distribution, the server's script is one that bash takes."""

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
SERVER = ("dependencies", "server", "jwt")
# Which lists of pyproject.toml each file is for, what it leaves out, and what it has beside.
FILES = {
    "requirements": (SERVER, {"tensordict", "torch"}, set[str]()),
    "trainer-requirements": ((*SERVER, "trainer", "ray", "demo"), set[str](), set[str]()),
    "build-requirements": (("requires",), set[str](), {"build"}),
}


@pytest.mark.parametrize("file", FILES)
def test_requirements_are_the_distributions_and_pinned_but_torch_with_hashes(file: str) -> None:
    listed = {_name(r): r.specifier for r in _listed(file) if _name(r) not in FILES[file][2]}
    assert listed == {_name(r): r.specifier for r in _wanted(file)}
    pins = pinned(file)
    assert "torch" not in pins
    for requirement in _listed(file):
        if requirement.name != "torch":
            assert requirement.specifier.contains(pins[_name(requirement)]), requirement
    blocks = re.split(r"\n(?=\w)", (IMAGE / f"{file}.txt").read_text())
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks if "==" in block)


def test_the_trainers_image_runs_the_versions_of_the_servers() -> None:
    assert pinned().items() <= pinned("trainer-requirements").items()


def test_the_script_is_one_that_bash_takes_and_refuses_to_run_without_a_destination() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True, timeout=300)
    done = subprocess.run([SCRIPT], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (1, "build_root.sh: usage: build_root.sh DESTINATION | --pin\n")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_has_nothing_that_shellcheck_warns_of() -> None:
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def pinned(file: str = "requirements") -> dict[str, Version]:
    """Versions by normalized name."""
    found = re.findall(r"^([\w.-]+)==(\S+)", (IMAGE / f"{file}.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def _listed(file: str) -> list[Requirement]:
    lines = (IMAGE / f"{file}.in").read_text().splitlines()
    included = [found for line in lines if line.startswith("-r ") for found in _listed(line[3:].removesuffix(".in"))]
    return included + [Requirement(line) for line in lines if line and line[0] not in "#-"]


def _wanted(file: str) -> list[Requirement]:
    text = (REPOSITORY / "pyproject.toml").read_text()
    lists, left_out, _ = FILES[file]
    found = (re.search(rf"^{name} = (\[\n.*?^\]|\[.*?$)", text, re.MULTILINE | re.DOTALL) for name in lists)
    quoted = (line for match in found if match for line in re.findall(r'(?:^\s+|\[)"([^"]+)"', match[1], re.MULTILINE))
    return [r for r in map(Requirement, quoted) if r.name not in left_out]


def _name(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)

"""The extras of pyproject.toml are those that docs/install.md lists, and `all` goes beside any framework. Its version
is that of the manifests.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
EXTRAS = dict(re.findall(r"^([a-z-]+) = (\[.*?\])(?: *#[^\n]*)?$", SECTION, flags=re.MULTILINE | re.DOTALL))
FRAMEWORKS = {"nemo-rl", "slime", "trl", "verl"}


def needs(extra: str) -> set[str]:
    """The extras that one brings."""
    named = [name for listed in re.findall(r"rl-dataplane\[([a-z,-]+)\]", EXTRAS[extra]) for name in listed.split(",")]
    return {extra}.union(*map(needs, named))


def test_the_page_lists_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \|", page, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == EXTRAS.keys()


def test_all_is_every_extra_that_goes_beside_a_framework() -> None:
    assert needs("all") == EXTRAS.keys() - FRAMEWORKS - {"automodel", "trainer"}


def test_no_extra_for_a_framework_brings_transformers() -> None:
    """verl, NeMo-RL and others cap it below what the trainer needs."""
    for extra in FRAMEWORKS | {"all"}:
        assert "transformers" not in "".join(EXTRAS[name] for name in needs(extra))


def test_the_manifests_name_the_version() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert version
    base = (ROOT / "deploy" / "kubernetes" / "base" / "kustomization.yaml").read_text()
    ours = re.findall(r"name: rl-dataplane-\w+\n +newTag: (\S+)|app.kubernetes.io/version: (\S+)", base)
    assert ["".join(found) for found in ours] == [version[1]] * 3

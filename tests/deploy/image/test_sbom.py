"""The list of what the server's image is made of, and the script that writes it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name
from tests.deploy.image.container import ROOT, debian_packages_in_root
from tests.deploy.image.test_recipe import IMAGE

SBOM = ROOT / "usr/share/sbom/rl-dataplane-server.cdx.json"


@pytest.mark.image
@pytest.mark.usefixtures("built_root")
class TestOfTheImage:
    def test_it_lists_every_python_distribution_of_the_root_with_its_version_and_licence(self) -> None:
        found = [PathDistribution(path) for path in ROOT.rglob("*.dist-info")]
        listed = _components(SBOM, "pkg:pypi/")
        assert _versions(listed) == {canonicalize_name(one.metadata["Name"]): one.version for one in found}
        assert all(component["licenses"] for component in listed)

    def test_it_lists_every_debian_package_of_the_root_with_its_version(self) -> None:
        assert _versions(_components(SBOM, "pkg:deb/debian/")) == debian_packages_in_root()

    def test_hashes_of_wheels_are_pinned_ones(self) -> None:
        pins = set(re.findall(r"--hash=sha256:(\w+)", (IMAGE / "requirements.txt").read_text()))
        unpinned = [c["name"] for c in _components(SBOM, "pkg:pypi/") if c["hashes"][0]["content"] not in pins]
        assert unpinned == ["rl-dataplane"]

    def test_it_is_beside_the_root_too(self) -> None:
        assert ROOT.with_name("image-root.cdx.json").read_bytes() == SBOM.read_bytes()


@pytest.mark.parametrize(
    ("metadata", "licences"),
    [
        ("License-Expression: MIT OR Apache-2.0", [{"expression": "MIT OR Apache-2.0"}]),
        ("License-Expression: MIT\nLicense: of old", [{"expression": "MIT"}]),
        ("Classifier: License :: OSI Approved :: BSD License", [{"license": {"name": "BSD License"}}]),
        ("License: Zlib\n of many lines", [{"license": {"name": "Zlib"}}]),
        ("Classifier: Typing :: Typed", None),
    ],
)
def test_the_licence_is_what_the_wheels_metadata_tell(
    tmp_path: Path, metadata: str, licences: list[dict[str, Any]] | None
) -> None:
    _wheel(tmp_path, "Some.Thing", metadata)
    (found,) = _components(_written(tmp_path), "pkg:pypi/some-thing@1.0")
    assert found.get("licenses") == licences


def test_the_same_wheels_at_the_same_time_give_the_same_bytes(tmp_path: Path) -> None:
    _wheel(tmp_path, "some")
    assert _written(tmp_path).read_bytes() == _written(tmp_path).read_bytes()
    assert json.loads(_written(tmp_path).read_text())["metadata"]["timestamp"] == "2001-09-09T01:46:40Z"


def _wheel(folder: Path, name: str, metadata: str = "License: MIT") -> None:
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        path = zipfile.ZipInfo(f"{name}-1.0.dist-info/METADATA")  # its time is 1980, not now
        archive.writestr(path, f"Name: {name}\nVersion: 1.0\n{metadata}\n")


def _written(folder: Path) -> Path:
    """Of the folder's wheels, ours among them, without Debian packages."""
    _wheel(folder, "rl_dataplane")
    script, environment = IMAGE / "write_sbom.py", {"SOURCE_DATE_EPOCH": "1000000000"}
    subprocess.run([sys.executable, script, folder, folder, folder / "sbom"], check=True, env=environment, timeout=300)
    return folder / "sbom"


def _components(sbom: Path, purl: str) -> list[dict[str, Any]]:
    components: list[dict[str, Any]] = json.loads(sbom.read_text())["components"]
    return [component for component in components if component["purl"].startswith(purl)]


def _versions(components: list[dict[str, Any]]) -> dict[str, str]:
    assert len({component["name"] for component in components}) == len(components)
    return {component["name"]: component["version"] for component in components}

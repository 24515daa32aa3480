"""What is in the server's root, and what is not."""

from __future__ import annotations

import os
import stat
from collections import Counter
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version
from tests.deploy.image.container import ROOT, debian_packages_in_root, run, volume
from tests.deploy.image.test_recipe import IMAGE, pinned

pytestmark = [pytest.mark.image, pytest.mark.usefixtures("built_root")]

LIMIT_MB = 200
WRITABLE = {"run/dataplane", "tmp", "var/lib/dataplane"}
PROGRAMS = {"usr/bin/python3", "usr/bin/python3.11", "usr/local/bin/dataplane", "usr/local/bin/dataplane-server"}
MODULES = ROOT / "usr/local/lib/python3.11/dist-packages"


def test_it_is_small() -> None:
    sizes = Counter[str]()
    for path, status in _entries():
        if stat.S_ISREG(status.st_mode):
            sizes[_part(path)] += status.st_size
    whole = sum(sizes.values()) / 1e6
    print(f"\n{ROOT.name}: {whole:.0f} MB of at most {LIMIT_MB}")  # noqa: T201  # what people ask of an image
    for part, size in sizes.most_common(12):
        print(f"  {size / 1e6:6.1f} MB  {part}")  # noqa: T201
    assert whole < LIMIT_MB


def test_its_packages_are_the_pinned_ones_and_ours() -> None:
    def named(distribution: Distribution) -> str:
        return canonicalize_name(distribution.metadata["Name"])

    installed = {named(found): Version(found.version) for found in distributions(path=[str(MODULES)])}
    assert set(installed) - set(pinned()) == {"rl-dataplane"}
    assert {name: installed[name] for name in pinned()} == pinned()


def test_its_debian_packages_are_the_pinned_ones_told_where_scanners_look() -> None:
    lines = (line.partition("#")[0].strip() for line in (IMAGE / "packages.txt").read_text().splitlines())
    pins = (line.partition("=") for line in lines if line)
    assert debian_packages_in_root() == {name: version for name, _, version in pins}


@pytest.mark.parametrize("module", ["torch", "tensordict", "trainer_adapter", "pip", "setuptools", "numpy/tests"])
def test_it_lacks_what_only_trainers_and_developers_need(module: str) -> None:
    assert not (MODULES / module).exists()


def test_its_programs_are_the_interpreter_and_our_two_so_there_is_no_shell_compiler_or_package_manager() -> None:
    found = {str(path) for path, _ in _entries() if path.parent.name in ("bin", "sbin")}
    assert found == PROGRAMS


def test_everything_belongs_to_root_and_gives_no_rights() -> None:
    for path, status in _entries():
        assert (status.st_uid, status.st_gid) == (0, 0), path
        assert not status.st_mode & (stat.S_ISUID | stat.S_ISGID), path


def test_everybody_can_read_everything_and_write_only_where_volumes_are_mounted() -> None:
    writable = set()
    for path, status in _entries():
        if stat.S_ISLNK(status.st_mode) or str(path) == "root":
            continue
        assert status.st_mode & stat.S_IROTH, path
        if status.st_mode & stat.S_IWOTH:
            writable.add(str(path))
            assert status.st_mode & stat.S_ISVTX, path
    assert writable == WRITABLE


def test_every_link_leads_somewhere_in_the_root() -> None:
    for path, status in _entries():
        if stat.S_ISLNK(status.st_mode):
            link = ROOT / path
            target = link.readlink()
            meant = ROOT / target.relative_to("/") if target.is_absolute() else link.parent / target
            assert meant.resolve().is_relative_to(ROOT), path
            assert meant.exists(), path


def test_every_module_has_its_bytecode_since_nobody_can_write_it_later() -> None:
    sources = [path for path, _ in _entries() if path.suffix == ".py" and path.parts[0] == "usr"]
    assert len(sources) > 1000
    for path in sources:
        compiled = ROOT / path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc"
        assert compiled.exists(), path


def test_nothing_tells_where_it_was_built() -> None:
    for path, status in _entries():
        if stat.S_ISREG(status.st_mode):
            assert b"/.image-root." not in (ROOT / path).read_bytes(), path


def test_every_library_finds_the_libraries_that_it_needs() -> None:
    code = """
import ctypes, os, pathlib
for path in sorted(pathlib.Path("/usr").rglob("*.so*")):
    try:
        ctypes.CDLL(str(path), os.RTLD_LAZY)
    except OSError as error:
        print(error)
"""
    with volume() as mounted:
        done = run(["python3.11", "-c", code], mounted)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_certificates_and_time_zones_are_there() -> None:
    code = """
import ssl, zoneinfo
print(len(ssl.create_default_context().get_ca_certs()) > 50, zoneinfo.ZoneInfo("Asia/Tokyo"))
"""
    with volume() as mounted:
        done = run(["python3.11", "-c", code], mounted)
    assert (done.stdout, done.stderr) == ("True Asia/Tokyo\n", "")


def _entries() -> list[tuple[Path, os.stat_result]]:
    """Every path below the root, relative to it, and what the file system says of it."""
    return [(path.relative_to(ROOT), path.lstat()) for path in sorted(ROOT.rglob("*"))]


def _part(path: Path) -> str:
    """The package that a file came with, or its folder."""
    if "dist-packages" in path.parts:
        return path.parts[path.parts.index("dist-packages") + 1].partition("-")[0].removesuffix(".libs")
    return "/".join(path.parts[:3])

"""The fence: server, client, trainer and contract do without the packages of `integrations`; these and the trainer use
public names of the others.
"""

from __future__ import annotations

import re

import pytest
from tests.repository.test_imports import PACKAGES, ROOT, imported

FOLDER = ROOT / "integrations"
INTEGRATIONS = {
    path.parent.name: path.parent
    for path in sorted(FOLDER.rglob("__init__.py"))
    if path.parent.name != "tests" and not (path.parent.parent / "__init__.py").exists()
}
_NAMED = re.compile(rf"\b({'|'.join(INTEGRATIONS)})\b|\bintegrations/\w")
_TEXTS = {".py", ".pyi", ".proto", ".c", ".js", ".html", ".css"}


def test_no_part_names_an_integration() -> None:
    files = [path for part in PACKAGES.values() for path in part.rglob("*") if path.suffix in _TEXTS]
    naming = {str(path.relative_to(ROOT)): found[0] for path in files if (found := _NAMED.search(path.read_text()))}
    assert (len(files) > 200, len(INTEGRATIONS) > 5, naming) == (True, True, {})


def test_integrations_import_public_modules_and_names_and_nothing_of_the_server() -> None:
    against = {
        str(path.relative_to(ROOT)): names
        for package, folder in INTEGRATIONS.items()
        for path in folder.rglob("*.py")
        if (names := offences(path.read_text(), package, is_test="tests" in path.relative_to(FOLDER).parts))
    }
    assert against == {}


def test_the_trainer_imports_public_modules_and_names_of_the_client() -> None:
    files = sorted(PACKAGES["trainer_adapter"].rglob("*.py"))
    against = {
        str(path.relative_to(ROOT)): names
        for path in files
        if (names := offences(path.read_text(), "trainer_adapter", is_test=False))
    }
    assert (len(files) > 50, against) == (True, {})


def test_every_integration_is_in_the_wheel_and_typed() -> None:
    wheel = re.findall(r'^    "(integrations/[\w/]+)",$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert sorted(wheel) == sorted(str(folder.relative_to(ROOT)) for folder in INTEGRATIONS.values())
    assert [name for name, folder in INTEGRATIONS.items() if not (folder / "py.typed").exists()] == []


def offences(source: str, package: str, *, is_test: bool) -> list[str]:
    """What a module of a package imports against the law. Tests may start servers."""
    return [name for name in imported(source) if _is_offence(name.split("."), package, is_test)]


def _is_offence(parts: list[str], package: str, is_test: bool) -> bool:
    if parts[0] == package:
        return False
    private = any(part.startswith("_") and not part.startswith("__") for part in parts[1:])
    ours = parts[0] in PACKAGES or parts[0] in INTEGRATIONS
    return ours and (private or (parts[0] == "dataplane_server" and not is_test))


@pytest.mark.parametrize(
    "source",
    [
        "import dataplane_client._connect.session",
        "from dataplane_client import _session",
        "from dataplane_client._verbs._sync.client import connect",
        "from dataplane_client.cli import _values",
        "from dataplane_trl._feed import Feed",
        "def read():\n    from trainer_adapter.policy import _policy",
        "from dataplane_server.core.plane import DataPlane",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert len(offences(source, "dataplane_slime", is_test=False)) == 1


def test_a_package_may_import_what_is_its_own() -> None:
    assert offences("from dataplane_trl._feed import Feed", "dataplane_trl", is_test=False) == []

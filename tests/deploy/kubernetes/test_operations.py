"""What docs/operations.md names is there: metrics, flags, commands, files, and the manifests' own names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deploy.kubernetes.manifests import OVERLAYS, name_of, rendered
from typer.main import get_command

from dataplane_client.cli._app import app
from dataplane_server.cli import _parser
from dataplane_server.observe.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


def _found(pattern: str) -> list[str]:
    return sorted(set(re.findall(pattern, PAGE)))


@pytest.mark.parametrize("name", _found(r"\bdataplane_(?!client|server\b)[a-z0-9_]+"))
def test_every_metric_that_is_named_is_exported(name: str) -> None:
    exported = {spec.name + suffix for spec in CATALOG for suffix in ("", *SUFFIXES.get(spec.kind, ()))}
    assert name in exported


@pytest.mark.parametrize("flag", _found(r"(?<![\w-])--[a-z][a-z-]+"))
def test_every_flag_that_is_named_exists(flag: str) -> None:
    of_others = ("--for", "--replicas", "--timeout")  # kubectl's
    commands = get_command(app).commands.values()  # type: ignore[attr-defined]
    of_commands = {name for command in commands for parameter in command.params for name in parameter.opts}
    assert flag in _parser()._option_string_actions or flag in of_others or flag in of_commands


def test_every_command_that_is_named_exists() -> None:
    command = [sys.executable, "-c", "from dataplane_client.cli import main; main()", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    there = set(re.findall(r"^  ([a-z-]+) ", shown, re.MULTILINE))
    assert set(_found(r"(?:`|    |-- )dataplane ([a-z-]+)")) <= there


@pytest.mark.parametrize("path", _found(r"(?:docs|deploy)/[\w./-]*\w"))
def test_every_file_that_is_named_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_namespaces_pods_and_policies_have_the_names_that_they_are_called_by() -> None:
    names = {name_of(manifest) for overlay in OVERLAYS for manifest in rendered(overlay)}
    for namespace in _found(r"kubectl -n ([\w-]+)"):
        assert f"Namespace/{namespace}" in names
    assert {"Job/trainer", "StatefulSet/dataplane-server", "NetworkPolicy/dataplane-metrics"} <= names
    assert {"job/trainer", "dataplane-server-0", "dataplane-metrics"} <= set(re.findall(r"[\w/-]+", PAGE))

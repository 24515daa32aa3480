"""What docs/operations.md names is there: metrics, flags, commands, files, and the manifests' own names."""

from __future__ import annotations

import re
from pathlib import Path

from tests.deploy.kubernetes.manifests import OVERLAYS, name_of, rendered
from typer.main import get_command

from dataplane_client.cli._app import app
from dataplane_server.cli import _parser
from dataplane_server.observe.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


def _found(pattern: str) -> set[str]:
    return set(re.findall(pattern, PAGE))


def test_every_metric_that_is_named_is_exported() -> None:
    exported = {spec.name + suffix for spec in CATALOG for suffix in ("", *SUFFIXES.get(spec.kind, ()))}
    assert _found(r"\bdataplane_(?!client|server\b)[a-z0-9_]+") <= exported


def test_every_command_and_flag_that_is_named_exists() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert _found(r"(?:`|    |-- )dataplane ([a-z-]+)") <= commands.keys()
    of_commands = {flag for command in commands.values() for parameter in command.params for flag in parameter.opts}
    of_others = {"--cacert", "--for", "--replicas", "--resolve", "--timeout"}  # kubectl and curl
    of_server = set(re.findall(r"--[a-z][a-z-]+", _parser().format_help()))
    assert _found(r"(?<![\w-])--[a-z][a-z-]+") <= of_server | of_commands | of_others


def test_every_file_that_is_named_exists() -> None:
    assert [path for path in _found(r"(?:docs|deploy)/[\w./-]*\w") if not (ROOT / path).exists()] == []


def test_namespaces_pods_and_policies_have_the_names_that_they_are_called_by() -> None:
    names = {name_of(manifest) for overlay in OVERLAYS for manifest in rendered(overlay)}
    for namespace in _found(r"kubectl -n ([\w-]+)"):
        assert f"Namespace/{namespace}" in names
    assert {"Job/trainer", "StatefulSet/dataplane-server", "NetworkPolicy/dataplane-metrics"} <= names
    assert {"job/trainer", "dataplane-server-0", "dataplane-metrics"} <= set(re.findall(r"[\w/-]+", PAGE))

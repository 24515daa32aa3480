"""Arrows point one way, and what is light stays light: seen in `sys.modules` of a fresh process and in the sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import commands
from tests.statements import statements

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "rl_dataplane": ROOT / "proto" / "rl_dataplane",
    "dataplane_server": ROOT / "dataplane_server" / "dataplane_server",
    "dataplane_client": ROOT / "client" / "dataplane_client",
    "trainer_adapter": ROOT / "trainer_adapter" / "trainer_adapter",
}
ALLOWED = {
    "rl_dataplane": {"rl_dataplane"},
    "dataplane_server": {"dataplane_server", "rl_dataplane"},
    "dataplane_client": {"dataplane_client", "rl_dataplane"},
    "trainer_adapter": {"trainer_adapter", "dataplane_client"},
}
SOURCES = [(package, path) for package, root in PACKAGES.items() for path in sorted(root.rglob("*.py"))]


LIGHT = {
    "client": [
        ("dataplane_client.errors", "torch grpc numpy google.protobuf"),
        ("dataplane_client.records.meta", "torch grpc numpy google.protobuf"),
        ("dataplane_client", "torch tensordict grpc numpy ray dataplane_server"),
        ("dataplane_client.observe", "prometheus_client opentelemetry grpc torch numpy"),
        ("dataplane_client._values.columns_layout", "torch"),
        ("dataplane_client.packing", "torch"),
        ("dataplane_client.cli", "torch tensordict ray dataplane_server"),
        ("rl_dataplane.v1.data_plane_pb2_grpc", "torch dataplane_server"),
    ],
    "server": [
        ("rl_dataplane.v1.data_plane_pb2_grpc", "torch dataplane_client dataplane_server.service"),
        ("dataplane_server.service.server", "torch tensordict dataplane_client trainer_adapter ray"),
        # they fit one major version of protobuf
        ("dataplane_server.service.server", "grpc_health.v1.health_pb2 grpc_reflection.v1alpha.reflection"),
        ("dataplane_server.cli", "torch tensordict dataplane_client trainer_adapter ray"),
        ("dataplane_server.testing", "torch tensordict dataplane_client trainer_adapter ray"),
    ],
}
"""Modules, and what they must not load. What a process has loaded for one counts for those after it, too."""


@pytest.mark.parametrize("modules", LIGHT.values(), ids=LIGHT)
def test_importing_a_module_does_not_load_what_is_not_its_business(modules: list[tuple[str, str]]) -> None:
    code = f"""
import importlib, sys
for module, heavy in {modules!r}:
    importlib.import_module(module)
    if loaded := set(heavy.split()) & set(sys.modules):
        print(module, *sorted(loaded))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_client_loads_no_ray() -> None:
    """Nor does torch, which it loads."""
    code = "import sys, dataplane_client.client, dataplane_client.aio; sys.exit('ray' in sys.modules)"
    assert commands.run([sys.executable, "-c", code]).returncode == 0


def test_modules_import_only_along_the_arrows() -> None:
    against = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package, path in SOURCES
        for name in imported(path.read_text())
        if name.partition(".")[0] in PACKAGES.keys() - ALLOWED[package]
    ]
    assert (len(SOURCES) > 60, against) == (True, [])


def imported(source: str) -> Iterator[str]:
    """Every module and name that a module imports, with the path to it, also within functions and for types alone."""
    for node in statements(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


SURROUNDS = {
    "answers are recalled": r"answers\.recall\(",
    "answers are remembered": r"answers\.remember\(",
    "waiting writes are admitted": r"\.admit_waiting\(",
    "queued claims are served": r"verbs\.queue\.pop\(",
    "tasks are observed": r"task\.observe\(",
    "cached figures are dropped": r"\.figures = None$",
    "the history grows": r"history\.note\(",
}


def test_what_surrounds_a_change_of_the_core_is_in_one_module() -> None:
    """Other modules define these functions; only `core/turn.py` calls them."""
    core = PACKAGES["dataplane_server"] / "core"
    sources = {str(file.relative_to(core)): file.read_text() for file in core.rglob("*.py")}
    for what, pattern in SURROUNDS.items():
        found = [file for file, text in sources.items() if re.search(pattern, text, re.MULTILINE)]
        assert found == ["turn.py"], what

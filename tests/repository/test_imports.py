"""Arrows point one way, and what is light stays light: seen in `sys.modules` of a fresh process and in the sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("dataplane_server.service.server", "torch tensordict dataplane_client trainer_adapter ray"),
        (
            "dataplane_server.service.server",
            "grpc_health.v1.health_pb2 grpc_reflection.v1alpha.reflection",
        ),  # they fit one major version of protobuf
        ("dataplane_server.cli", "torch tensordict dataplane_client trainer_adapter ray"),
        ("dataplane_server.testing", "torch tensordict dataplane_client trainer_adapter ray"),
        (
            "dataplane_server.core.plane",
            "torch grpc asyncio google.protobuf dataplane_server.service rl_dataplane.v1.data_plane_pb2",
        ),
        ("dataplane_client", "torch tensordict grpc numpy ray dataplane_server"),
        ("dataplane_client.cli", "torch tensordict ray dataplane_server"),
        ("dataplane_client.errors", "torch grpc numpy google.protobuf"),
        ("dataplane_client.meta", "torch grpc numpy google.protobuf"),
        ("dataplane_client.client, dataplane_client.aio", "ray dataplane_server trainer_adapter"),
        ("rl_dataplane.v1.data_plane_pb2_grpc", "torch dataplane_server dataplane_client"),
    ],
)
def test_importing_a_module_does_not_load_what_is_not_its_business(module: str, heavy: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & set({heavy.split()!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_modules_import_only_along_the_arrows() -> None:
    against = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package, path in SOURCES
        for name in imported(path)
        if name.partition(".")[0] in PACKAGES.keys() - ALLOWED[package]
    ]
    assert (len(SOURCES) > 60, against) == (True, [])


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


SURROUNDS = {
    "answers are recalled": r"answers\.recall\(",
    "answers are remembered": r"answers\.remember\(",
    "waiting writes are admitted": r"\.admit_waiting\(",
    "queued claims are served": r"verbs\.queue\.pop\(",
    "tasks are observed": r"task\.observe\(",
    "cached figures are dropped": r"\.figures = None$",
    "the history grows": r"history\.note\(",
}


@pytest.mark.parametrize("pattern", SURROUNDS.values(), ids=SURROUNDS)
def test_what_surrounds_a_change_of_the_core_is_in_one_module(pattern: str) -> None:
    """Other modules define these functions; only `core/turn.py` calls them."""
    core = ROOT / "dataplane_server" / "dataplane_server" / "core"
    found = {
        str(file.relative_to(core)) for file in core.rglob("*.py") if re.search(pattern, file.read_text(), re.MULTILINE)
    }
    assert found == {"turn.py"}

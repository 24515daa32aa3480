"""What is derived is what its source says: the contract's modules, the blocking client, the pages of metrics,
of errors and of the API.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERBS = ROOT / "client" / "dataplane_client" / "_verbs"


@pytest.mark.parametrize(
    "script", ["generate_proto.py", "unasync.py", "document_metrics.py", "document_errors.py", "document_api.py"]
)
def test_running_it_again_changes_nothing(script: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # protoc's plug-ins are found there
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / script, "--check"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_every_module_of_the_client_has_its_twin() -> None:
    names = [{path.name for path in (VERBS / folder).glob("*.py")} for folder in ("_async", "_sync")]
    assert names[0] == names[1]


def test_the_module_that_is_written_twice_offers_the_same_names() -> None:
    assert public_names(VERBS / "_async" / "runtime.py") == public_names(VERBS / "_sync" / "runtime.py")


def public_names(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}

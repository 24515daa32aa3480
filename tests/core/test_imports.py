"""The core stands alone: it works where no outer layer can be imported, and the same way every time."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.statements import statements

import dataplane_server.core

FORBIDDEN = ("grpc", "google.protobuf", "torch", "asyncio", "tensordict")
INNER = ("dataplane_server.storage", "dataplane_server.service", "dataplane_server.observe", "dataplane_client")
CORE = "dataplane_server.core"
ROOT = Path(next(iter(dataplane_server.core.__path__)))
MODULES = {
    ".".join((CORE, *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
SCRIPT = f"""
import importlib, sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        for forbidden in {FORBIDDEN + INNER!r}:
            if name == forbidden or name.startswith(forbidden + "."):
                raise ImportError("the core must not import " + name)

sys.meta_path.insert(0, Wall())
for module in {list(MODULES)!r}:
    importlib.import_module(module)

import numpy as np
from dataplane_server.core.calls.answers import PartitionInfo, Registered
from dataplane_server.core.calls.requests import *
from dataplane_server.core.calls.values import Definition
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.plane import DataPlane

plane = DataPlane(Limits(memory_bytes=1000))
def apply(call):
    answer = plane.apply(call, 0.0)
    if not isinstance(answer, (PartitionInfo, Registered)):  # which has a set, whose order is told nowhere else
        print(answer)
    print(plane.take_effects(), plane.digest())
    return answer
def put(request, ids, field, size):
    column = ColumnSpec(field, Shape("jagged", "uint8", ()), np.full(len(ids), size))
    return apply(PutSamples(request, "p", ids, [column], [{{"k": 1}} for _ in ids]))

tasks = tuple("task%d" % i for i in range(12))
apply(RegisterPartition("r1", Definition("p", ("a", "b", "c"), tasks, per_token_fields=frozenset("ab"))))
session = apply(OpenSession("", "me", 1.0)).session_id
for i, task in enumerate(tasks):
    apply(ClaimSamples("wait%d" % i, "p", task, ("abc"[i % 3],), 3, 2))
apply(ReserveGroup("r2", "p", "g", ("g1", "g2"), session))
apply(FinishWrite(put("r3", ["s%d" % i for i in range(6)], "a", 90).ticket))
put("r4", ["t1"], "b", 500)
apply(BeginRead("p", ["s1", "s0"], ["a"]))
apply(CommitClaim("r5", "c-15"))
apply(ClearSamples("r6", "p", None))
apply(ExtendPartition("r7", "p", ("d", "e"), frozenset("e"), ("task12", "task13"), 9))
apply(ClosePartition("r8", "p"))
apply(RegisterPartition("r9", Definition("p", ("c",), tasks[:3]), True))
apply(Drain())
print(plane.totals())
plane.check_invariants()
print("done")
"""


def run(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_works_without_grpc_torch_and_asyncio_and_the_same_way_whatever_the_hash_seed() -> None:
    first, second = run("1"), run("2")
    assert first.endswith("done\n")
    assert first == second


@cache
def imported_by(path: Path) -> set[str]:
    """Names of modules, those imported for type checking included."""
    names: set[str] = set()
    for node in statements(path.read_text()):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            names |= below or {node.module}
    return names


def test_neither_the_core_nor_its_tests_import_the_outer_layers_clocks_or_sockets() -> None:
    outer = tuple(f"{name}." for name in (*FORBIDDEN, *INNER, "time", "datetime", "socket", "threading", "unittest"))
    sources = [*MODULES.values(), *sorted(Path(__file__).parent.rglob("*.py"))]
    found = {path: [name for name in imported_by(path) if f"{name}.".startswith(outer)] for path in sources}
    assert {path: names for path, names in found.items() if names} == {}


def test_no_modules_of_the_core_import_each_other_in_a_circle() -> None:
    left = {module: imported_by(path) & MODULES.keys() for module, path in MODULES.items()}
    while left:
        free = {module for module, needed in left.items() if not needed & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {module: needed for module, needed in left.items() if module not in free}

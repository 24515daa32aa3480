"""The core stands alone: it works where nothing of the outer layers can be imported, and the same way every time."""

from __future__ import annotations

import ast
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import dataplane_server.core

FORBIDDEN = ("grpc", "google.protobuf", "torch", "asyncio", "tensordict")
INNER = ("dataplane_server.storage", "dataplane_server.service", "dataplane_server.observe", "dataplane_client")

STORY = f"""
import importlib, pkgutil, sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        for forbidden in {FORBIDDEN + INNER!r}:
            if name == forbidden or name.startswith(forbidden + "."):
                raise ImportError("the core must not import " + name)

sys.meta_path.insert(0, Wall())
import dataplane_server.core
for module in pkgutil.iter_modules(dataplane_server.core.__path__, "dataplane_server.core."):
    importlib.import_module(module.name)

import numpy as np
from dataplane_server.core.calls.messages import ClaimRequest, Commit, Definition, Put
from dataplane_server.core.calls.columns import ColumnSpec, Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.plane import DataPlane

plane = DataPlane(Limits(memory_bytes=1000))
def put(request, ids, field, size):
    column = ColumnSpec(field, Shape("jagged", "uint8", ()), np.full(len(ids), size))
    return plane.begin_put(Put(request, "p", ids, [column], [{{"k": 1}} for _ in ids]), 0.0)

tasks = tuple("task%d" % i for i in range(12))
plane.register_partition("r1", Definition("p", ("a", "b", "c"), tasks), 0.0)
for i, task in enumerate(tasks):
    print(plane.claim(ClaimRequest("wait%d" % i, "p", task, ("abc"[i % 3],), 3, 2), 0.0))
held = put("r2", ["s%d" % i for i in range(6)], "a", 100)
print(plane.finish(held.ticket, 0.0), plane.take_effects())
print(put("r3", ["t1"], "b", 500), plane.begin_read("p", ["s1", "s0"], ["a"]))
print(plane.begin_commit(Commit("r4", "c-15"), 0.0), plane.clear_samples("r5", "p", None, 0.0), plane.take_effects())
print(plane.register_partition("r6", Definition("p", ("c",), tasks[:3]), 0.0), plane.take_effects())
plane.drain(0.0)
print(plane.take_effects(), plane.totals())
plane.check_invariants()
print("fine")
"""


def run(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", STORY],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_of_the_core_works_without_grpc_torch_and_asyncio() -> None:
    assert run("0").endswith("fine\n")


def test_the_same_calls_give_the_same_answers_whatever_the_hash_seed() -> None:
    assert len({run(hash_seed) for hash_seed in ("1", "2", "3")}) == 1


def imported_by(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def sources() -> list[Path]:
    modules = [Path(next(iter(dataplane_server.core.__path__))) / f"{module.name}.py" for module in core_modules()]
    return [*modules, *sorted(Path(__file__).parent.glob("*.py"))]


def core_modules() -> list[pkgutil.ModuleInfo]:
    return list(pkgutil.iter_modules(dataplane_server.core.__path__))


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_neither_the_core_nor_its_tests_import_the_outer_layers_clocks_or_sockets(path: Path) -> None:
    outer = {*FORBIDDEN, *INNER, "time", "datetime", "socket", "threading", "unittest"}
    assert not {name for name in imported_by(path) for wall in outer if f"{name}.".startswith(f"{wall}.")}

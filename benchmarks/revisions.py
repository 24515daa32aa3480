"""Small calls of this revision beside those of another one, in pairs of processes that take turns.

    python benchmarks/revisions.py REVISION [--pairs 5] [--transport shm|grpc]

Each process of a pair starts a server of its revision, puts rows of one column one by one and reads them, has 16
processes put for three seconds, and last runs server and client in one process, where the core's calls are timed. Both
revisions run in this environment, the other one from a worktree.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

from dataplane_client import DataPlaneClient, connect
from dataplane_server.core.plane import DataPlane
from dataplane_server.testing import running_server
from servers import server_process
from timing import Series, seconds

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("client", "dataplane_server", "proto")
_KERNELS = ("cc", "-O3", "-fPIC", "-shared", "-pthread", "-std=c11", "-o", "_row_kernels.so", "row_kernels.c")
_WARM_UP, _CALLS, _CLIENTS, _CLIENTS_S = 200, 2_000, 16, 3.0
_PROCESS_S = 600
_ROW = {"x": torch.zeros(1, 1_000, dtype=torch.int64)}
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["torch"])  # which takes longest to import


def _put(client: DataPlaneClient, name: str) -> Any:
    return client.put_samples([name], "p", _ROW)


def _one_client(client: DataPlaneClient) -> dict[str, float]:
    """The median microseconds of a put and of a read."""
    for n in range(_WARM_UP):
        client.read_columns(_put(client, f"warm-{n}"), ["x"])
    puts = [seconds(partial(_put, client, f"row-{n}")) for n in range(_CALLS)]
    reads = [seconds(partial(client.read_columns, meta, ["x"]))[0] for _, meta in puts]
    return {"put, us": statistics.median(took for took, _ in puts) * 1e6, "read, us": statistics.median(reads) * 1e6}


def _many_clients(address: str, transport: Any) -> dict[str, float]:
    ready = _PROCESSES.Barrier(_CLIENTS)
    jobs = [(address, transport, number) for number in range(_CLIENTS)]
    with _PROCESSES.Pool(_CLIENTS, _begin_with, (ready,)) as pool:
        return {f"puts/s of {_CLIENTS} clients": sum(pool.starmap(_puts_a_second, jobs, chunksize=1))}


_ready: Barrier | None = None


def _begin_with(ready: Barrier) -> None:
    global _ready
    _ready = ready


def _puts_a_second(address: str, transport: Any, number: int) -> float:
    with connect(address, transport=transport) as client:
        _put(client, f"first-{number}")
        assert _ready is not None
        _ready.wait(60)
        count, began = 0, time.monotonic()
        while time.monotonic() < began + _CLIENTS_S:
            _put(client, f"client-{number}-{count}")
            count += 1
        return count / (time.monotonic() - began)


def _core(transport: Any) -> dict[str, float]:
    """CPU time of the core for each put of one row, in microseconds."""
    spent, within = [0], [False]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if within[0]:
                return call(*arguments, **named)
            within[0], began = True, time.thread_time_ns()
            try:
                return call(*arguments, **named)
            finally:
                within[0], spent[0] = False, spent[0] + time.thread_time_ns() - began

        return run

    for name in {"apply", "store", "take_effects"} & set(vars(DataPlane)):
        setattr(DataPlane, name, timed(vars(DataPlane)[name]))
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(listen=f"unix://{folder}/core.sock") as address,
        connect(address, transport=transport) as client,
    ):
        client.register_partition("p", ["x"], 0, ["train"])
        for n in range(_WARM_UP):
            _put(client, f"warm-{n}")
        spent[0] = 0
        for n in range(_CALLS):
            _put(client, f"row-{n}")
        return {"core of a put, us": spent[0] / 1e3 / _CALLS}


def _measure(transport: Any) -> dict[str, float]:
    with server_process("2GiB") as server, connect(server.unix, transport=transport) as client:
        client.register_partition("p", ["x"], 0, ["train"])
        found = _one_client(client) | _many_clients(server.unix, transport)
    return found | _core(transport)


def _in_process(tree: Path, transport: str) -> dict[str, float]:
    """What a process measures whose packages are those of a tree."""
    packages = os.pathsep.join(str(tree / package) for package in _PACKAGES)
    command = [sys.executable, __file__, "--measure", "--transport", transport]
    environment = {**os.environ, "PYTHONPATH": packages}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=_PROCESS_S, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def _worktree(revision: str) -> Iterator[Path]:
    git = ["git", "-C", str(_ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            for source in tree.glob("client/**/row_kernels.c"):
                subprocess.run(_KERNELS, cwd=source.parent, check=True)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def main() -> None:
    """Print the medians of both revisions, and of the quotient within each pair, with its range."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("revision", nargs="?", help="the other revision")
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--transport", default="shm", choices=["shm", "grpc"])
    options.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(_measure(given.transport)))
        return
    if given.revision is None:
        options.error("which revision?")
    found: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    with _worktree(given.revision) as tree:
        trees = {"before": tree, "now": _ROOT}
        for pair in range(given.pairs):
            for name in list(trees)[:: -1 if pair % 2 else 1]:
                found[name].append(_in_process(trees[name], given.transport))
    print(f"| {given.transport} | {given.revision} | now | now / before (range) |\n|---|---|---|---|")
    for figure in found["now"][0]:
        before, now = (Series(tuple(one[figure] for one in found[name])) for name in ("before", "now"))
        quotient = now.over(before)
        range_ = f"{quotient.low:.2f} to {quotient.high:.2f}"
        print(f"| {figure} | {before.median:.0f} | {now.median:.0f} | {quotient.median:.2f} ({range_}) |")


if __name__ == "__main__":
    main()

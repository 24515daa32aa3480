"""Small calls of this revision beside those of another one, in processes that take turns.

    python benchmarks/revisions.py REVISION [--turns 20] [--transport shm|grpc]

Two processes live side by side, each with a server of its revision, and measure in turn, so both see the same machine:
puts of rows of one column one by one and their reads, 16 processes that put for two seconds, and the core's calls where
server and client share a process. Both revisions run in this environment, the other one from a worktree.
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
from typing import IO, Any, cast

import torch

from dataplane_client import DataPlaneClient, connect
from dataplane_server.core.plane import DataPlane
from dataplane_server.testing import running_server
from servers import server_process
from timing import Series, seconds

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("client", "dataplane_server", "proto")
_KERNELS = ("cc", "-O3", "-fPIC", "-shared", "-pthread", "-std=c11", "-o", "_row_kernels.so", "row_kernels.c")
_CALLS, _CLIENTS, _CLIENTS_S = 300, 16, 2.0
_ROW = {"x": torch.zeros(1, 1_000, dtype=torch.int64)}
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["torch"])  # which takes longest to import


def _put(client: DataPlaneClient, name: str) -> Any:
    return client.put_samples([name], "p", _ROW)


def _one_client(client: DataPlaneClient) -> dict[str, float]:
    """The median microseconds of a put and of a read."""
    puts = [seconds(partial(_put, client, f"row-{n}")) for n in range(_CALLS)]
    reads = [seconds(partial(client.read_columns, meta, ["x"]))[0] for _, meta in puts]
    client.clear_samples(None, "p")
    return {"put, us": statistics.median(took for took, _ in puts) * 1e6, "read, us": statistics.median(reads) * 1e6}


@contextmanager
def _many_clients(address: str, transport: Any) -> Iterator[Callable[[], dict[str, float]]]:
    """Processes that put at the same time, each time they are asked to."""
    ready = _PROCESSES.Barrier(_CLIENTS)
    with _PROCESSES.Pool(_CLIENTS, _connect, (address, transport, ready)) as pool:
        yield lambda: {f"puts/s of {_CLIENTS} clients": sum(pool.map(_puts_a_second, range(_CLIENTS), chunksize=1))}


_connected: tuple[DataPlaneClient, Barrier]


def _connect(address: str, transport: Any, ready: Barrier) -> None:
    global _connected
    client = connect(address, transport=transport)
    _put(client, f"first-{os.getpid()}")
    _connected = client, ready


def _puts_a_second(number: int) -> float:
    client, ready = _connected
    ready.wait(60)
    count, began = 0, time.monotonic()
    while time.monotonic() < began + _CLIENTS_S:
        _put(client, f"client-{number}-{count}")
        count += 1
    return count / (time.monotonic() - began)


def _core(client: DataPlaneClient, spent_ns: list[int]) -> dict[str, float]:
    """CPU time of the core for each put of one row, in microseconds. spent_ns: by all calls of the core."""
    before = spent_ns[0]
    for n in range(_CALLS):
        _put(client, f"row-{n}")
    took = spent_ns[0] - before
    client.clear_samples(None, "p")
    return {"core of a put, us": took / 1e3 / _CALLS}


def _count_core() -> list[int]:
    """Have the core's calls in this process timed. Returns where their nanoseconds of CPU time are added up."""
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
    return spent


def _measure(transport: Any) -> None:
    """Print the figures of this process's revision for each line that comes."""
    spent_ns = _count_core()
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process("2GiB") as server,
        connect(server.unix, transport=transport) as client,
        running_server(listen=f"unix://{folder}/core.sock") as core,
        connect(core, transport=transport) as beside_core,
    ):
        for each in (client, beside_core):
            each.register_partition("p", ["x"], 0, ["train"])
        with _many_clients(server.unix, transport) as many_clients:
            for _ in sys.stdin:
                found = _one_client(client) | many_clients() | _core(beside_core, spent_ns)
                client.clear_samples(None, "p")
                print(json.dumps(found), flush=True)


@contextmanager
def _measuring(tree: Path, transport: str) -> Iterator[Callable[[], dict[str, float]]]:
    """A process whose packages are those of a tree. Each call returns what it measures now."""
    packages = os.pathsep.join(str(tree / package) for package in _PACKAGES)
    command = [sys.executable, __file__, "--measure", "--transport", transport]
    environment = {**os.environ, "PYTHONPATH": packages}
    with subprocess.Popen(
        command, env=environment, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        lines, answers = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)

        def measure() -> dict[str, float]:
            print(file=lines)
            found: dict[str, float] = json.loads(answers.readline())
            return found

        yield measure  # the process ends when its input does


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
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("revision", nargs="?", help="the other revision")
    options.add_argument("--turns", type=int, default=20)
    options.add_argument("--transport", default="shm", choices=["shm", "grpc"])
    options.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        _measure(given.transport)
    elif given.revision is None:
        options.error("which revision?")
    else:
        _compare(given.revision, given.turns, given.transport)


def _compare(revision: str, turns: int, transport: str) -> None:
    """Print the medians of both revisions, and of the quotient within each turn, with its quartiles."""
    found: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    with (
        _worktree(revision) as tree,
        _measuring(tree, transport) as before,
        _measuring(_ROOT, transport) as now,
    ):
        before(), now()  # to warm up
        for turn in range(turns):
            for name, measure in [("before", before), ("now", now)][:: -1 if turn % 2 else 1]:
                found[name].append(measure())
    print(f"| {transport} | {revision} | now | now / before (quartiles) |\n|---|---|---|---|")
    for figure in found["now"][0]:
        old, new = (Series(tuple(one[figure] for one in found[name])) for name in ("before", "now"))
        low, median, high = statistics.quantiles(new.over(old).values, n=4, method="inclusive")
        print(f"| {figure} | {old.median:.0f} | {new.median:.0f} | {median:.2f} ({low:.2f} to {high:.2f}) |")


if __name__ == "__main__":
    main()

"""Measure puts and gets in a cluster, beside TransferQueue and beside Ray's own transfer.

    .venv-transfer-queue/bin/python benchmarks/cluster_transfer.py [--quick] [--units N] [--rounds N]

Starts a Ray cluster of three nodes on this machine. The coordinator is on the first; a process on the second puts
TransferQueue's workload, and processes on the second and the third get it: by TransferQueue's module, by our client,
and by our module in its place. Systems take turns in every round. A turn is a few puts and gets in a row, as in a run
that uses one system, and its medians count; every put has new rows. The goals are of the client.

The floor on the same node copies the bytes into a warm buffer, once for a put and once for a get. Across nodes a get is
Ray's own transfer: the actor on the second node returns the same bytes as one array to the process on the third.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import ray
from ray.cluster_utils import Cluster as RayCluster

from cluster_member import OUR_MODULE, OURS, RAY, TRANSFER_QUEUE, Member
from dataplane_server.cluster.coordinator.starting import start
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from peers import transfer_queue
from report import arguments, begin, compare, table
from timing import Steps, alternate, in_a_row
from workload import Workload

_MOST_BYTES = 256 << 20
_STORE_BYTES = 1 << 30
_MEMORY_BYTES = 768 << 20
_SETTINGS = (("CI", 128, 4, 1024), ("small / 8", 128, 9, 8192), ("small", 1024, 9, 8192), ("medium", 4096, 15, 32768))
_SYSTEMS = (TRANSFER_QUEUE, OURS, OUR_MODULE, RAY)
_STEPS = ("put", "get", "total")
_GOALS = {"same node": 5.0, "across nodes": 2.0}
_OF_RAY = 0.8
_IN_A_ROW = 3


class Nodes:
    """The three processes, and rounds of each system with them."""

    def __init__(self, address: str) -> None:
        actor: Any = ray.remote(Member)
        self._putter, self._near, self._far = self.members = [
            actor.options(resources={node: 0.1}, num_cpus=0).remote(address) for node in "bbc"
        ]
        self._rounds = 0

    def prepare(self, workload: Workload) -> int:
        """Make the batch, and check that all systems give it back unchanged. Returns its bytes."""
        self._rows = workload.rows
        size_bytes, digest = ray.get(self._putter.build.remote(workload))
        ray.get([member.open.remote(workload) for member in self.members])
        for system in (TRANSFER_QUEUE, OURS, OUR_MODULE):
            keys = self._keys()
            ray.get(self._putter.put.remote(system, keys))
            for reader in (self._near, self._far):
                if ray.get(reader.digest.remote(system, keys)) != digest:
                    raise RuntimeError(f"{system}: {workload} came back changed")
            ray.get(self._putter.clear.remote(system, keys))
        return int(size_bytes)

    def round(self, system: str) -> Mapping[str, float]:
        keys = self._keys()
        times = {"put": ray.get(self._putter.put.remote(system, keys))}
        if system == RAY:
            times["same node"] = ray.get(self._putter.copy.remote())
        else:
            times["same node"] = ray.get(self._near.get.remote(system, keys, self._putter))
        times["across nodes"] = ray.get(self._far.get.remote(system, keys, self._putter))
        if system != RAY:
            ray.get(self._putter.clear.remote(system, keys))
        return times

    def _keys(self) -> list[str]:
        """New ones."""
        self._rounds += 1
        return [f"{self._rounds}_{row}" for row in range(self._rows)]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="the smaller settings only, 3 rounds")
    parser.add_argument("--rounds", type=int, default=5, help="of each workload (default: 5)")
    parser.add_argument("--units", type=int, default=2, help="storage units of TransferQueue (default: 2, its own)")
    options = parser.parse_args()
    console = begin()
    console.print(", ".join(f"{name} {version(name)}" for name in ("ray", "TransferQueue")))
    goals: list[tuple[str, str, str]] = []
    with _nodes(options.units) as nodes:
        for workload in _workloads(options.quick):
            size_bytes = nodes.prepare(workload)
            turns = {name: in_a_row(partial(nodes.round, name), _IN_A_ROW) for name in _SYSTEMS}
            found = alternate(turns, 3 if options.quick else options.rounds, 1)
            name = f"{workload.name} {workload.kind}"
            size = f"{workload.rows} x {workload.fields} x {workload.length}, {size_bytes / 1e6:.0f} MB"
            for place in _GOALS:
                times = {system: _times(steps, place) for system, steps in found.items()}
                compare(console, f"{name}, {place}: {size}", times)
                goals.append(_goal(name, place, times))
    console.print(table("goals", ("goal", "measured", "holds"), goals, text_columns=3))


def _times(steps: Steps, place: str) -> Steps:
    return {"put": steps["put"], "get": steps[place], "total": steps["put"].plus(steps[place])}


def _goal(name: str, place: str, times: Mapping[str, Steps]) -> tuple[str, str, str]:
    """The goal, what was measured, and whether all steps hold."""
    faster = {step: times[TRANSFER_QUEUE][step].over(times[OURS][step]) for step in _STEPS}
    of_floor = {step: times[RAY][step].over(times[OURS][step]) for step in _STEPS}
    least, in_order = _GOALS[place], ", ".join(_STEPS)
    wanted = f"{name}, {place}: {in_order} at least {least:g} x as fast as TransferQueue"
    measured = ", ".join(f"{faster[step].median:.2f}" for step in _STEPS) + " x"
    holds = {step for step in _STEPS if faster[step].median >= least}
    if place == "across nodes":
        wanted += f", or {_OF_RAY} of Ray's speed"
        measured += "; " + ", ".join(f"{of_floor[step].median:.2f}" for step in _STEPS) + " of Ray's"
        holds |= {step for step in _STEPS if of_floor[step].median >= _OF_RAY}
    return wanted, measured, "[green]yes[/green]" if len(holds) == len(_STEPS) else "[red]no[/red]"


def _workloads(quick: bool) -> Iterator[Workload]:
    for name, rows, fields, length in _SETTINGS[: 2 if quick else None]:
        kept = min(rows, _MOST_BYTES // (4 * fields * length))
        for is_complex in (False, True):
            yield Workload(name if kept == rows else f"{name} / {rows / kept:.3g}", kept, fields, length, is_complex)


@contextmanager
def _nodes(units: int) -> Iterator[Nodes]:
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # Ray's name; other processes of the machine would be preferred
    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": _STORE_BYTES})
    for name in "bc":
        cluster.add_node(num_cpus=4, object_store_memory=_STORE_BYTES, resources={name: 1})
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        transfer_queue.start(units)
        config = ServerConfig(listen=("127.0.0.1:0",), http=None, limits=Limits(memory_bytes=_MEMORY_BYTES))
        with start(config, name=f"bench-{os.getpid()}", cache_bytes=_MEMORY_BYTES) as plane:
            nodes = Nodes(plane.address)
            yield nodes
            ray.get([member.close.remote() for member in nodes.members])
        transfer_queue.tq.close()
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

"""The processes of a run on the nodes of a Ray cluster.

The server is a data plane of the cluster: each node has memory of its own for values. Each generator is an actor on
another node than this one, and its rollouts stay in the memory of its node. The ranks of the trainer are actors where
Ray has CPUs for them: on this node, if the cluster is the run's own. The trainer's driver and the controller are
processes here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import generator
from processes import HERE, Processes

_OTHER_NODES = 2
_OBJECT_STORE_BYTES = 100 << 20


class ClusterProcesses(Processes):
    """ray_address: of the cluster to join. None: one of three nodes on this machine begins with the run and ends with
    it; `ranks` CPUs are on this node, none on the others.
    """

    def __init__(self, logs: Path, environment: dict[str, str], ray_address: str | None, ranks: int) -> None:
        super().__init__(logs, environment)
        self._cluster = _begin(ranks) if ray_address is None else None
        address = self._cluster.address if self._cluster is not None else ray_address
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING, runtime_env={"working_dir": str(HERE)})
        self._environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        own = ray.get_runtime_context().get_node_id()
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        self._others = cycle([node for node in nodes if node != own] or nodes)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        ray.shutdown()
        if self._cluster is not None:
            self._cluster.shutdown()  # type: ignore[no-untyped-call]

    def _spawn(self, name: str, command: Sequence[object]) -> Any:
        if not name.startswith("generator"):
            return super()._spawn(name, command)
        _, *arguments = map(str, command)
        return GeneratorProcess(next(self._others), arguments, self.log(name))


def _begin(ranks: int) -> RayCluster:
    usual: dict[str, Any] = {"object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": ranks, **usual})
    for _ in range(_OTHER_NODES):
        cluster.add_node(num_cpus=0, **usual)
    cluster.wait_for_nodes()
    return cluster


class GeneratorActor:
    """A generator in a process of its node."""

    def run(self, arguments: Sequence[str]) -> None:
        generator.main(arguments)


class GeneratorProcess:
    """What a subprocess.Popen is to Processes: a generator on a node. The log has its error, if it fails."""

    def __init__(self, node: str, arguments: Sequence[str], log: Path) -> None:
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        kind: Any = ray.remote(GeneratorActor)
        self._actor = kind.options(num_cpus=0, scheduling_strategy=place).remote()
        self._run = self._actor.run.remote(arguments)
        self._log = log
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and ray.wait([self._run], timeout=0)[0]:
            self.returncode = self._outcome()
        return self.returncode

    def _outcome(self) -> int:
        try:
            ray.get(self._run)
        except ray.exceptions.RayError as error:
            self._log.write_text(str(error))
            return 1
        return 0

    def terminate(self) -> None:
        ray.kill(self._actor)

    kill = terminate

    def wait(self, timeout_s: float | None = None) -> None:
        ray.wait([self._run], timeout=timeout_s)

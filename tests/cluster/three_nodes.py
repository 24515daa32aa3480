"""A local Ray cluster of three nodes with a data plane on them. This process is a driver on the second node.

So its clients are on another node than the coordinator.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster as RayCluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.waiting import eventually

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.records.descriptions import NodeDescription
from dataplane_server.cluster.coordinator.actor import NAMESPACE
from dataplane_server.cluster.coordinator.starting import Cluster, start
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits

ray: Any = pytest.importorskip("ray")

MIB = 1 << 20
MEMORY_BYTES = 256 * MIB
CACHE_BYTES = 16 * MIB
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where nodes have their folders
_HOSTS = ("127.0.0.2", "127.0.0.3")  # by which a driver chooses its node


class ThreeNodes:
    """machine: Ray's. cluster: the data plane. nodes: ids in Ray; of the coordinator's first, then of this process."""

    def __init__(self, machine: RayCluster, cluster: Cluster, nodes: list[str]) -> None:
        self.machine = machine
        self.cluster = cluster
        self.nodes = nodes

    @property
    def address(self) -> str:
        return self.cluster.address

    def outside(self) -> DataPlaneClient:
        """A client that is in no process of the Ray cluster, as far as the data plane knows."""
        return connect(self.cluster.addresses["listen"][0])

    def wait(self) -> None:
        """Wait until all nodes have an arena."""
        with self.outside() as client:
            eventually(lambda: sum(node.up for node in client.server_status().nodes) == len(self.nodes))

    def check(self) -> None:
        """Check the core's invariants. Raises AssertionError if one is broken."""
        ray.get(self.cluster.coordinator.__ray_call__.remote(_check_invariants), timeout=120)

    def figures(self, node: int) -> NodeDescription:
        """What the server's status tells of a node, once that is what the node has counted until now."""
        actor = ray.get_actor(f"{self.cluster.name}-node-{self.nodes[node]}", NAMESPACE)
        counted = ray.get(actor.__ray_call__.remote(_counted), timeout=120)
        with self.outside() as client:
            while True:
                told = next(one for one in client.server_status().nodes if one.name == self.nodes[node])
                if (told.fetched_bytes, told.cache_hit_bytes) == counted:
                    return told
                time.sleep(0.02)

    @contextlib.contextmanager
    def emptied(self) -> Iterator[str]:
        """A block at whose end the core's invariants hold, and after which no partition is there."""
        try:
            yield self.address
            self.check()
        finally:
            with self.outside() as client:
                for partition in client.partitions():
                    client.drop_partition(partition.partition_id)


def remove_folders(name: str) -> None:
    """What the data plane of this name has left in shared memory."""
    for folder in SHARED_MEMORY.glob(f"rl-dataplane-{name}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _check_invariants(coordinator: Any) -> None:
    coordinator._server.plane.check_invariants()


def _counted(actor: Any) -> tuple[int, int]:
    return actor._fetching.fetched_bytes, actor._fetching.hit_bytes


@contextlib.contextmanager
def three_nodes() -> Iterator[ThreeNodes]:
    """Run them for a `with` block. Takes about 10 s to start."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # sockets need a short path
    with contextlib.ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        machine, nodes = _start_ray(folder, ending)
        config = ServerConfig(listen=("127.0.0.1:0",), http=None, limits=Limits(memory_bytes=MEMORY_BYTES))
        starting = ray.remote(start).options(**on_node(nodes[0]))
        name = f"tests-{os.getpid()}"
        ending.callback(remove_folders, name)  # also those of nodes that tests killed
        cluster = ray.get(starting.remote(config, name=name, cache_bytes=CACHE_BYTES), timeout=100)
        running = ThreeNodes(machine, ending.enter_context(cluster), nodes)
        running.wait()
        yield running


def _start_ray(folder: str, ending: contextlib.ExitStack) -> tuple[RayCluster, list[str]]:
    """Returns the ids of the nodes, too."""
    ray.shutdown()  # of fixtures whose tests are over
    usual: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * MIB, "include_dashboard": False}
    head = usual | {"temp_dir": folder, "_system_config": {"prestart_worker_first_driver": False}}
    head["dashboard_port"] = None  # one that is free; Ray's own default leaves a socket open where another cluster is
    Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)  # Ray notes the address there, and makes only `folder`
    machine = RayCluster(initialize_head=True, head_node_args=head)
    ending.callback(machine.shutdown)
    others = [machine.add_node(**usual, node_ip_address=host) for host in _HOSTS]
    options = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "error"}
    ray.init(address=machine.address, _node_ip_address=_HOSTS[0], **options)
    ending.callback(ray.shutdown)
    return machine, [node.node_id for node in (machine.head_node, *others)]


def on_node(node: str) -> dict[str, Any]:
    """Options of an actor or a task that is to run on this node of Ray."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}

"""A data plane on the nodes of a local Ray cluster, and ways to kill any of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from ray.cluster_utils import Cluster as RayCluster
from tests.cluster.three_nodes import SHARED_MEMORY, on_node, ray, remove_folders
from tests.ranks import free_port
from tests.waiting import eventually

from dataplane_client.client import connect
from dataplane_server.cluster.coordinator.actor import NAMESPACE
from dataplane_server.cluster.coordinator.starting import Cluster, start
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits

MIB = 1 << 20
_NODE = {"num_cpus": 1, "object_store_memory": 80 * MIB}
_WAIT_S = 60.0


@contextlib.contextmanager
def ray_nodes(count: int) -> Iterator[Any]:
    """A Ray cluster of this process, its driver, which is on the first node."""
    cluster: Any = RayCluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
    try:
        for _ in range(count - 1):
            cluster.add_node(**_NODE)
        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_ray_node(machine: Any) -> str:
    """A further node of Ray; its id. From the main thread."""
    return str(machine.add_node(**_NODE).node_id)


class LocalCluster:
    """A context manager that ends the data plane, and removes what it had in shared memory.

    machine: the Ray cluster. data: its directory, or None. memory_bytes, cache_bytes: of each node. outside: its
    address for programs that are not in the Ray cluster, always the same. home: the node on which the coordinator
    begins, the head unless another is named. mirrored: whether nodes get mirrors. settings: others of the server.
    """

    def __init__(
        self,
        machine: Any,
        name: str,
        data: Path | None,
        memory_bytes: int = 16 * MIB,
        cache_bytes: int = MIB,
        home: str = "",
        *,
        mirrored: bool = False,
        **settings: Any,
    ) -> None:
        self.machine = machine
        self.name = name
        self.address = f"ray://{name}"
        self.outside = f"127.0.0.1:{free_port()}"
        self.home = home or str(machine.head_node.node_id)
        config = ServerConfig(
            listen=(self.outside,),
            http=None,
            limits=Limits(memory_bytes=memory_bytes),
            data_dir=data,
            durability="memory" if data is None else "process",
            log_history_bytes=0,
            **settings,
        )
        starting = ray.remote(start).options(**on_node(self.home))
        started = starting.remote(config, name=name, cache_bytes=cache_bytes, mirrored=mirrored)
        self._cluster: Cluster = ray.get(started, timeout=_WAIT_S)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        remove_folders(self.name)

    def stop(self) -> None:
        self._cluster.stop()

    # -- what is there -------------------------------------------------------------------------------------------------

    @property
    def folders(self) -> list[Path]:
        return sorted(SHARED_MEMORY.glob(f"rl-dataplane-{self.name}-*"))

    @property
    def coordinator(self) -> Any:
        return self._cluster.coordinator

    def node_actor(self, ray_node: str) -> Any:
        return ray.get_actor(f"{self.name}-node-{ray_node}", NAMESPACE)

    def where(self, ray_node: str) -> dict[str, Any]:
        """What a client on a node is told."""
        found: dict[str, Any] = ray.get(self.coordinator.where.remote(ray_node), timeout=_WAIT_S)
        return found

    def wait_for_nodes(self) -> list[str]:
        """The ids of all nodes of Ray, once each has a node of the data plane."""
        found: list[str] = []

        def all_up() -> bool:
            found[:] = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
            return all(self.where(node)["socket"] for node in found)

        eventually(all_up)
        return found

    def wait_for_mirrors(self) -> None:
        """Wait until each node has one, and each that has ended, two."""
        with connect(self.outside) as client:
            eventually(lambda: all(len(one.mirrors) > one.ended for one in client.server_status().nodes))

    def put_on(self, ray_node: str, field: str, *rows: str, group: str = "") -> None:
        """Have a process on a node put sevens, four of each row of partition p, perhaps as a group."""
        ray.get(ray.remote(_put).options(**on_node(ray_node)).remote(self.address, field, rows, group), timeout=_WAIT_S)

    # -- faults --------------------------------------------------------------------------------------------------------

    def kill_coordinator(self) -> float:
        """Kill its process, and wait until it serves again. For how many seconds it did not."""
        began = time.monotonic()
        os.kill(pid_of(self.coordinator), signal.SIGKILL)
        ray.get(self.coordinator.addresses.remote(), timeout=_WAIT_S)
        return time.monotonic() - began

    def kill_node_actor(self, ray_node: str) -> float:
        """Kill the process of a node's actor, and wait until it has registered again. How many seconds that took."""
        began, before = time.monotonic(), self.where(ray_node)["nonce"]
        os.kill(pid_of(self.node_actor(ray_node)), signal.SIGKILL)
        eventually(lambda: self.where(ray_node)["nonce"] not in (before, b""))
        return time.monotonic() - began

    def add_node(self) -> str:
        """A further node of Ray, once the data plane has it; its id. From the main thread."""
        ray_node = add_ray_node(self.machine)
        eventually(lambda: self.where(ray_node)["socket"])
        return ray_node

    def kill_node(self, ray_node: str) -> float:
        """Kill all processes of a node at once, and wait until its rows are lost. How many seconds that took."""
        began = time.monotonic()
        (node,) = (one for one in self.machine.worker_nodes if one.node_id == ray_node)
        for process in node.all_processes["raylet"]:
            for pid in _children_of(process.process.pid):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, signal.SIGKILL)
        self.machine.remove_node(node, allow_graceful=False)
        with connect(self.outside) as client:
            eventually(lambda: ray_node not in [one.name for one in client.server_status().nodes])
        return time.monotonic() - began

    def errors(self) -> str:
        """What the logs of the actors have of errors."""
        logs = Path(self.machine.head_node.get_logs_dir_path()).glob("worker-*.err")
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
        return "\n".join(line for line in lines if '"level": "error"' in line or line.startswith("Traceback"))


def _put(address: str, field: str, rows: tuple[str, ...], group: str) -> None:
    values = {field: torch.full((len(rows), 4), 7.0)}
    with connect(address, transport="shm") as client:
        if group:
            reserved = client.reserve_group("p", group, rows)
            reserved.put(rows, values)
            reserved.commit()
        else:
            client.put_samples(rows, "p", values)


def pid_of(actor: Any) -> int:
    """Of the process in which an actor lives, once it does."""
    from ray._private.state import actors

    told: dict[str, Any] = {}

    def is_alive() -> bool:
        told.update(actors(actor._actor_id.hex()))
        return told.get("State") == "ALIVE"

    eventually(is_alive)
    return int(told["Pid"])


def _children_of(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(status.parent.name))
    return found

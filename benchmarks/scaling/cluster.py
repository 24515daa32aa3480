"""A data plane on a local Ray cluster of two nodes, whose coordinator can be looked into."""

# ruff: noqa: SLF001  # some functions run inside of the coordinator

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dataplane_server.cluster.coordinator.starting import Cluster, start
from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits

NAMESPACE = "rl-dataplane"
CALLS_AT_ONCE = 8
_NODE_BYTES, _STORE_BYTES = 64 << 20, 128 << 20

Samples = dict[str, list[float]]


@contextmanager
def local_cluster() -> Iterator[tuple[Cluster, str]]:
    """A data plane on a local Ray cluster, and the id of Ray's node beside the coordinator's."""
    import ray
    from ray.cluster_utils import Cluster as RayCluster

    folder = tempfile.mkdtemp(prefix="ray-")
    os.environ["RAY_TMPDIR"] = folder  # so that no other program takes this cluster for its own
    head = {"num_cpus": 2, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    machines = RayCluster(initialize_head=True, head_node_args=head)
    try:
        machines.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
        machines.wait_for_nodes()
        ray.init(address=machines.address, namespace=NAMESPACE, log_to_driver=False)
        home = ray.get_runtime_context().get_node_id()
        config = ServerConfig(listen=("127.0.0.1:0",), http=None, limits=Limits(memory_bytes=_NODE_BYTES))
        with start(config, name=f"scaling-{os.getpid()}") as cluster:
            found = [node["NodeID"] for node in ray.nodes()]  # type: ignore[no-untyped-call]
            yield cluster, next(node for node in found if node != home)
    finally:
        ray.shutdown()
        machines.shutdown()  # type: ignore[no-untyped-call]
        shutil.rmtree(folder, ignore_errors=True)


def place_of(cluster: Cluster, ray_node: str) -> Mapping[str, Any]:
    """Where clients of a node attach, once its actor has registered."""
    while not (found := answer_of(cluster.coordinator.where.remote(ray_node)))["socket"]:
        time.sleep(0.1)
    return found  # type: ignore[no-any-return]


def in_coordinator(cluster: Cluster, call: Any, *arguments: Any) -> Any:
    """What a function of a benchmark returns in the coordinator's process, in a thread beside its event loop."""
    from ray import cloudpickle

    module = sys.modules[call.__module__]  # which actors cannot import
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return answer_of(cluster.coordinator.__ray_call__.remote(call, *arguments))


class Busy:
    """The CPU time of some threads of a process."""

    def __init__(self, process: int, threads: Sequence[int]) -> None:
        self.process = process
        self._threads = [Path(f"/proc/{process}/task/{thread}") for thread in threads]

    @classmethod
    def whole(cls, process: int) -> Busy:
        return cls(process, [int(thread.name) for thread in Path(f"/proc/{process}/task").iterdir()])

    @classmethod
    def loop(cls, cluster: Cluster) -> Busy:
        """Of the thread that runs the event loop of the coordinator."""
        process, threads = in_coordinator(cluster, _threads_of)
        return cls(process, threads[:1])

    @classmethod
    def interpreter(cls, cluster: Cluster) -> Busy:
        """Of the coordinator's threads that run Python code, one at a time: Ray takes calls of actors in another one
        than the event loop's.
        """
        return cls(*in_coordinator(cluster, _threads_of))

    def microseconds(self) -> float:
        """Until now. Waits until no thread runs, as the kernel counts a running thread late."""
        deadline = time.monotonic() + 1
        while any(_runs(thread) for thread in self._threads) and time.monotonic() < deadline:
            time.sleep(50e-6)
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in self._threads) / 1e3

    @contextmanager
    def series(self, samples: Samples, name: str, calls: int = CALLS_AT_ONCE) -> Iterator[None]:
        """A block that makes `calls` calls: adds the time of one."""
        before = self.microseconds()
        yield
        samples.setdefault(name, []).append((self.microseconds() - before) / calls)


def _runs(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R"


def _threads_of(coordinator: Any) -> tuple[int, list[int]]:
    """The process, and its threads that run Python code, that of the event loop first."""
    loop = coordinator._life.get_loop()._thread_id
    threads = sorted(threading.enumerate(), key=lambda thread: thread.ident != loop)
    return os.getpid(), [thread.native_id for thread in threads if thread.native_id is not None]


def answer_of(reference: Any) -> Any:
    import ray

    return ray.get(reference, timeout=60)

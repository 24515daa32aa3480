"""Starts the coordinator of a cluster as a detached actor, from a program that uses Ray or from the command."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from dataplane_server.cluster.coordinator.actor import (
    NAMESPACE,
    ClusterOptions,
    Coordinator,
    by_name,
    end_actor,
    end_nodes,
)
from dataplane_server.config import ServerConfig
from dataplane_server.log import get_log

DEFAULT_NAME = "dataplane"
_START_S = 600.0
_STOP_S = 30.0


@dataclass(frozen=True)
class Cluster:
    """A data plane that runs on Ray. address: for `connect` in programs of the Ray cluster. addresses: for others, as
    the event `serving` has them. `stop`, or the end of a `with` block, ends it. Its rows are gone then, unless it has a
    `data_dir`: with that they stay, in the memory of the nodes too, until a cluster of this name starts there again.
    keeps: whether they stay if the coordinator does not answer.
    """

    name: str
    addresses: dict[str, Any]
    coordinator: Any
    keeps: bool = True

    @property
    def address(self) -> str:
        return f"ray://{self.name}"

    def stop(self) -> None:
        """End all actors. Blocks for some seconds, for half a minute longer if the coordinator does not answer."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self.coordinator.stop.remote(), timeout=_STOP_S)
        end_actor(self.coordinator, self.name)
        with contextlib.suppress(ray.exceptions.RayError):  # Ray itself may be about to end
            end_nodes(self.name, keep=self.keeps)  # which a coordinator has left that hangs, or is not back

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    config: ServerConfig | None = None,
    *,
    name: str = DEFAULT_NAME,
    ray_address: str | None = None,
    cache_bytes: int | None = None,
    folder: str | None = None,
    mirrored: bool = False,
    timeout_s: float = _START_S,
) -> Cluster:
    """Run a data plane on the nodes of a Ray cluster; if one of this name runs already, find it. That one keeps its
    own settings; the event `cluster_found` warns of each setting given here that differs.

    config: as of a server; limits.memory_bytes is each node's, and durability is "disk" by default with a data_dir.
    Clients on other machines need an address in `listen` that they reach; the default is only for this machine. The
    coordinator runs on this node, and Ray restarts it there or, if the node is gone, elsewhere. ray_address: where Ray
    is, unless this program is connected already; None for the cluster of this machine, or a new one of this machine
    alone. cache_bytes: of each node, for bytes of others (default: a quarter of its memory). folder: of the nodes'
    arenas (default: in shared memory). mirrored: whether another node keeps a second copy of each node's rows, which
    takes memory_bytes of it, too.

    Blocks until the cluster serves: for some seconds, or for minutes where Ray is slow to start a process. Raises
    ray.exceptions.RayError if it cannot start, GetTimeoutError of these after timeout_s (it may start later; call again
    to find it), ValueError for settings that cannot be.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    of_cluster = {"cache_bytes": cache_bytes, "folder": folder, "mirrored": mirrored or None}
    asked = {} if config is None else by_name(config.for_cluster())
    asked |= {setting: value for setting, value in of_cluster.items() if value is not None}
    config = (config or ServerConfig(listen=("127.0.0.1:0",), http=None)).for_cluster()
    config.validate(cluster=True)
    if not ray.is_initialized():
        ray.init(address=ray_address, namespace=NAMESPACE, log_to_driver=False)
    cache_bytes = config.limits.memory_bytes // 4 if cache_bytes is None else cache_bytes
    options = ClusterOptions(name, cache_bytes, folder, mirrored)
    actor: Any = ray.remote(Coordinator)
    coordinator = actor.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        memory=1,  # Ray places an actor without any resource at random, whatever node it is to prefer
        max_restarts=-1,
        max_task_retries=-1,  # calls that its end interrupts wait for the next life
        max_concurrency=10_000,
        scheduling_strategy=NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True),
    ).remote(config, options)
    try:
        addresses: Any = ray.get(coordinator.addresses.remote(), timeout=timeout_s)
    except ray.exceptions.RayTaskError:  # it serves no more, and the next start would find it
        Cluster(name, {}, coordinator).stop()
        raise
    kept = addresses.pop("settings", asked)  # coordinators of earlier versions do not tell
    differing = [f"{name}: {kept[name]}, not {value}" for name, value in asked.items() if kept[name] != value]
    if differing:
        get_log().warning("cluster_found", cluster=name, keeps=differing)
    return Cluster(name, addresses, coordinator, keeps=kept.get("data_dir") is not None)

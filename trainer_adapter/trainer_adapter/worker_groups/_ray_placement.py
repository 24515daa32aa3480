"""Where Ray actors run: one bundle of a placement group for each rank, all reserved together or none.

Ray may order bundles in any way. Ranks are numbered node by node, so that tensor-parallel neighbours, which have
consecutive ranks, share a node if their number divides that of the node's workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from trainer_adapter.worker_groups._ray_options import RayGroupOptions


def require_ray() -> ModuleType:
    """Return the ray module. ImportError naming the extra if it is not installed, RuntimeError before ray.init()."""
    try:
        import ray
        import ray.util.placement_group
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise ImportError("workers as Ray actors need ray: install rl-dataplane[ray]") from error
    if not ray.is_initialized():
        raise RuntimeError("ray is not initialized: call ray.init() before making a group of Ray actors")
    module: ModuleType = ray
    return module


@dataclass(frozen=True)
class Seat:
    """A rank's place. bundle: its index in the placement group. local_rank: its number among the ranks of its node."""

    bundle: int
    local_rank: int


def reserve(options: RayGroupOptions) -> tuple[Any, list[Seat]]:
    """Reserve a placement group; returns it and each rank's seat. Blocks until the cluster has room.

    TimeoutError after placement_timeout_s names the requested resources and those of the cluster.
    """
    ray = require_ray()
    group = ray.util.placement_group([options.bundle] * options.num_workers, strategy=options.strategy)
    try:
        if not group.wait(timeout_seconds=options.placement_timeout_s):
            raise TimeoutError(_describe_shortage(ray, options))
        return group, assign_seats(ray.util.placement_group_table(group)["bundles_to_node_id"])
    except BaseException:
        ray.util.remove_placement_group(group)
        raise


def _describe_shortage(ray: Any, options: RayGroupOptions) -> str:
    return (
        f"no room for {options.num_workers} workers of {_resources(options.bundle)} each ({options.strategy}) within "
        f"{options.placement_timeout_s:g} s; the cluster has {_resources(ray.cluster_resources())}, of which "
        f"{_resources(ray.available_resources())} free"
    )


def _resources(found: Mapping[str, float]) -> str:
    return ", ".join(f"{found.get(name, 0.0):g} {name}" for name in ("GPU", "CPU") if name == "CPU" or name in found)


def assign_seats(node_of_bundle: Mapping[int, str]) -> list[Seat]:
    """Seats by rank: all bundles of the node of the first bundle, then those of the next node, and so on."""
    nodes: dict[str, list[int]] = {}
    for bundle in sorted(node_of_bundle):
        nodes.setdefault(node_of_bundle[bundle], []).append(bundle)
    return [Seat(bundle, number) for bundles in nodes.values() for number, bundle in enumerate(bundles)]


def actor_options(options: RayGroupOptions, group: Any, seat: Seat) -> dict[str, Any]:
    """Options of the actor in a seat. It is never restarted, because a rank without its weights is useless to the
    others.

    Without a GPU it uses as many threads as it has reserved CPUs; torch would otherwise use every core of the node for
    each rank.
    """
    strategy = require_ray().util.scheduling_strategies.PlacementGroupSchedulingStrategy
    threads = {} if options.gpus_per_worker else {"OMP_NUM_THREADS": str(options.cpus_per_worker)}
    return {
        "num_gpus": options.gpus_per_worker,
        "num_cpus": options.cpus_per_worker,
        "max_restarts": 0,
        "runtime_env": {"env_vars": threads},
        "scheduling_strategy": strategy(placement_group=group, placement_group_bundle_index=seat.bundle),
    }

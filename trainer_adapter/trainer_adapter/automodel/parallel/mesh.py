"""The ranks as a grid. Its dimensions are "dp", "cp" and "tp"; tensor-parallel neighbours have consecutive ranks, since
they exchange the most and should share a host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


class ParallelSizes(NamedTuple):
    """Numbers of ranks. dp_replicate: into how many groups the data-parallel ranks are divided, each of which holds all
    weights.
    """

    dp: int
    cp: int
    tp: int
    dp_replicate: int


def parallel_sizes(dtensor_cfg: Mapping[str, Any], world_size: int) -> ParallelSizes:
    """Raises ValueError for sizes that the world, or the data-parallel ranks, cannot be divided by."""
    tp, cp, ep, replicate = (
        int(dtensor_cfg.get(key, 1))
        for key in ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size", "dp_replicate_size")
    )
    if min(tp, cp, ep, replicate) < 1 or world_size % (tp * cp * ep) != 0:
        raise ValueError(
            f"dtensor_cfg: {world_size} ranks cannot be divided by tensor_parallel_size={tp} x "
            f"context_parallel_size={cp} x expert_parallel_size={ep}"
        )
    dp = world_size // (tp * cp * ep)
    if dp % replicate != 0:
        raise ValueError(f"dtensor_cfg: {dp} data-parallel ranks cannot be divided by dp_replicate_size={replicate}")
    if ep > 1 and dtensor_cfg.get("model_backend") != "automodel":
        raise ValueError("dtensor_cfg.expert_parallel_size > 1 needs model_backend=automodel")
    return ParallelSizes(dp, cp, tp, replicate)


def create_mesh(device: str, sizes: ParallelSizes) -> DeviceMesh:
    """A mesh of all ranks; "dp_cp", the ranks among which weights are divided, can be asked of it as well."""
    mesh = init_device_mesh(device, (sizes.dp, sizes.cp, sizes.tp), mesh_dim_names=("dp", "cp", "tp"))
    _flat(mesh)
    return mesh


def _flat(mesh: DeviceMesh) -> DeviceMesh:
    """The dimension "dp_cp", made when it is first asked for."""
    flat: DeviceMesh = mesh["dp", "cp"]._flatten("dp_cp")  # noqa: SLF001  # torch documents it, there is no other name
    return flat


def weight_mesh(mesh: DeviceMesh, dp_replicate: int) -> DeviceMesh:
    """Over which ranks weights are divided: the last dimension divides, a first one of two repeats.

    Ranks that share a sequence see other tokens, as data-parallel ranks do, so they divide weights as well.
    """
    data = _flat(mesh)
    if dp_replicate == 1:
        return data
    parts = (dp_replicate, data.size() // dp_replicate)
    return data._unflatten(0, parts, ("dp_replicate", "dp_shard"))  # noqa: SLF001  # likewise

"""The ranks as a grid with the dimensions "dp", "cp" and "tp".

Tensor-parallel neighbours have consecutive ranks, because they communicate the most and should share a host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


class ParallelSizes(NamedTuple):
    """Numbers of ranks. dp_replicate: the number of groups of data-parallel ranks; each group holds all weights.
    ep: ranks that hold all experts between them; they are data- or context-parallel ranks as well.
    """

    dp: int
    cp: int
    tp: int
    dp_replicate: int
    ep: int


def parallel_sizes(dtensor_cfg: Mapping[str, Any], world_size: int) -> ParallelSizes:
    """Read the sizes. ValueError if they do not divide the world, or the data-parallel ranks; NotImplementedError for
    cpu_offload on a single rank.
    """
    if world_size == 1 and dtensor_cfg.get("cpu_offload"):
        raise NotImplementedError("CPUOffload doesn't work on single GPU: set dtensor_cfg.cpu_offload=false")
    tp, cp, ep, replicate = (
        int(dtensor_cfg.get(key, 1))
        for key in ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size", "dp_replicate_size")
    )
    if min(tp, cp, ep, replicate) < 1 or world_size % (tp * cp) != 0:
        raise ValueError(
            f"dtensor_cfg: world size {world_size} is not a multiple of tensor_parallel_size={tp} x "
            f"context_parallel_size={cp}"
        )
    dp = world_size // (tp * cp)
    if dp * cp % ep != 0:
        raise ValueError(
            f"dtensor_cfg: expert_parallel_size={ep} does not divide the {dp * cp} data- and context-parallel ranks"
        )
    if dp % replicate != 0:
        raise ValueError(f"dtensor_cfg: dp_replicate_size={replicate} does not divide the {dp} data-parallel ranks")
    return ParallelSizes(dp, cp, tp, replicate, ep)


def create_mesh(device: str, sizes: ParallelSizes) -> DeviceMesh:
    """Make a mesh of all ranks. It also has "dp_cp", the ranks among which weights are divided."""
    mesh = init_device_mesh(device, (sizes.dp, sizes.cp, sizes.tp), mesh_dim_names=("dp", "cp", "tp"))
    flat_mesh(mesh)
    return mesh


def flat_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The dimension "dp_cp"; the first call makes it."""
    flat: DeviceMesh = mesh["dp", "cp"]._flatten("dp_cp")  # noqa: SLF001  # torch's documented name
    return flat


def weight_mesh(mesh: DeviceMesh, dp_replicate: int) -> DeviceMesh:
    """The ranks among which weights are divided. The last dimension shards; the first of two replicates.

    Context-parallel ranks see different tokens, like data-parallel ranks, so they divide weights as well.
    """
    data = flat_mesh(mesh)
    if dp_replicate == 1:
        return data
    parts = (dp_replicate, data.size() // dp_replicate)
    return data._unflatten(0, parts, ("dp_replicate", "dp_shard"))  # noqa: SLF001  # torch's documented name


def expert_mesh(mesh: DeviceMesh, ranks: int) -> DeviceMesh | None:
    """The ranks of "dp_cp" in two dimensions: `ranks` neighbours, "ep", hold all experts between them; the ranks of
    "efsdp" divide the same experts. None for 1.
    """
    if ranks == 1:
        return None
    data = flat_mesh(mesh)
    return data._unflatten(0, (data.size() // ranks, ranks), ("efsdp", "ep"))  # noqa: SLF001  # torch's documented name

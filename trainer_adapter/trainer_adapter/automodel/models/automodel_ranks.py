"""The device meshes of NeMo Automodel, and gradients of parameters that tensor-parallel ranks replicate.

The package has its own mesh, in which data-parallel ranks are two dimensions, and a second mesh for experts. All other
code uses the dimensions "dp", "cp" and "tp". So a view with these dimensions is made of the package's process groups;
no communicator exists twice.

With tensor parallelism some parameters are replicated, and after a backward pass each rank has its own gradient for
them. Norms of attention heads see one rank's heads only, so their gradient is the sum over ranks. Other norms see
everything, and their gradient is the mean, because ranks may differ by rounding. The package leaves both to the
training loop. Without it norms of heads would learn from some heads only, and ranks would drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainer_adapter.automodel.config import DistributedContext
from trainer_adapter.automodel.packages import from_package
from trainer_adapter.automodel.parallel.fsdp import FSDP2Config
from trainer_adapter.automodel.parallel.mesh import ParallelSizes, flat_mesh


@dataclass(frozen=True)
class AutomodelLayout(FSDP2Config):
    """The layout of a NeMo Automodel model. setup: its DistributedSetup, with the same settings and the package's
    meshes.
    """

    setup: Any


def arrange_ranks(dtensor_cfg: Mapping[str, Any], sizes: ParallelSizes, config: FSDP2Config) -> DistributedContext:
    """Make the package's meshes over all ranks; a collective call. config: as for the transformers backend."""
    moe_config = None
    if sizes.ep > 1:
        moe_config = from_package("MoEParallelizerConfig")(**(dtensor_cfg.get("moe_parallelizer") or {}))
    setup = from_package("DistributedSetup").build(
        strategy=from_package("FSDP2Config")(**vars(config)),
        parallelism_sizes=from_package("ParallelismSizes")(
            dp_replicate_size=sizes.dp_replicate, tp_size=sizes.tp, cp_size=sizes.cp, ep_size=sizes.ep
        ),
        moe_parallel_config=moe_config,
        activation_checkpointing=config.activation_checkpointing,
        world_size=torch.distributed.get_world_size(),
    )
    mesh = _view_in_three_dimensions(setup.mesh_context.device_mesh)
    return DistributedContext(
        device_mesh=mesh,
        moe_mesh=setup.mesh_context.moe_mesh,
        fsdp2_config=AutomodelLayout(**vars(config), setup=setup),
        moe_config=moe_config,
        dp_size=mesh["dp"].size(),
        tp_size=mesh["tp"].size(),
        cp_size=mesh["cp"].size(),
    )


def prepare_gradients(model: torch.nn.Module, context: DistributedContext) -> None:
    """Combine the gradients of replicated parameters; a collective call of tensor-parallel ranks.

    Call it exactly once for each optimizer step, after the last backward pass and before clipping: a second call would
    sum sums. It does nothing for models of the transformers backend.
    """
    layout = context.fsdp2_config
    if isinstance(layout, AutomodelLayout) and context.tp_size > 1:
        synchronize = from_package("synchronize_tp_replica_gradients")
        synchronize([model], layout.setup.mesh_context.device_mesh)


def mark_norms_of_heads(model: torch.nn.Module) -> None:
    """Mark norms of sharded heads, so that prepare_gradients sums their gradients over tensor-parallel ranks.

    The package marks them for models with plans of its own, not for models that it shards by the model's plan.
    """
    mark = from_package("mark_tp_replica_gradient_reduction")
    for module in model.modules():
        if not any(_is_divided(getattr(module, name, None)) for name in ("q_proj", "k_proj")):
            continue
        for name in ("q_norm", "k_norm"):
            norm = getattr(module, name, None)
            if isinstance(norm, torch.nn.Module) and not _is_divided(norm):
                mark(norm, "sum")


def _is_divided(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, DTensor) and "tp" in (weight.device_mesh.mesh_dim_names or ())


def _view_in_three_dimensions(mesh: DeviceMesh) -> DeviceMesh:
    """The same ranks in the same order, with their existing groups, as a mesh of "dp", "cp" and "tp"."""
    flat = from_package("get_flat_mesh")
    groups = [flat(mesh, name).get_group() for name in ("dp", "cp", "tp")]
    shape = [torch.distributed.get_world_size(group) for group in groups]
    view = DeviceMesh.from_group(
        groups, mesh.device_type, mesh=mesh.mesh.reshape(shape), mesh_dim_names=("dp", "cp", "tp")
    )
    flat_mesh(view)
    return view

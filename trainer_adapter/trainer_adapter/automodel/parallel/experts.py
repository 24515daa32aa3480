"""Expert parallelism: each rank holds some experts of every layer, and tokens travel to the ranks of their experts.

Plan (`base_model_ep_plan`) and forward pass are those of transformers, with two all-to-all exchanges for each layer.
Ranks that divide experts have tokens of their own, as all data- and context-parallel ranks do.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import OffloadPolicy, fully_shard

from trainer_adapter.automodel.parallel.fsdp import FSDP2Config
from trainer_adapter.automodel.parallel.tensor import pattern_of

_EXPERTS = "ep_dispatch_experts"
"""The rule for the module that has a layer's experts."""


def divide_experts(model: Any, meshes: DeviceMesh, alone: DeviceMesh, config: FSDP2Config) -> None:
    """Divide the experts in place: over the ranks of "ep", and each of these parts over the ranks of "efsdp".

    Call it before the model's other weights are sharded. meshes: of "efsdp" and "ep". alone: of this rank.

    Raises ValueError for a model whose experts transformers cannot divide or whose number the ranks do not divide,
    ImportError for a release of transformers that divides none.
    """
    try:
        from transformers.distributed.expert_parallel import apply_expert_parallelism  # not in 5.18
    except ImportError as error:
        raise ImportError("dtensor_cfg.expert_parallel_size > 1 needs transformers 5.24") from error
    plan = _own_plan(model)
    modules = [model.get_submodule(name) for name, rule in plan.items() if rule == _EXPERTS]
    if not modules:
        raise ValueError(
            f"dtensor_cfg.expert_parallel_size: transformers has no plan for experts of {type(model).__name__}; set 1"
        )
    apply_expert_parallelism(model, meshes["ep"], alone, plan)
    holders, offload = meshes["efsdp"], config.offload_policy or OffloadPolicy()
    for experts in modules:
        fully_shard(experts, mesh=holders, mp_policy=config.mp_policy, offload_policy=offload)
        # An expert's gradient has the tokens of all ranks, not of its holders alone, and is the mean over all.
        experts.set_gradient_divide_factor(float(meshes.size()))
        if holders.size() > 1:  # torch divides within the collective otherwise, which gloo and NCCL in bfloat16 cannot
            experts.set_force_sum_reduction_for_comms(True)


def _own_plan(model: Any) -> dict[str, str]:
    """The model's rules by names. Weights come first: what sends tokens needs the number of a rank's experts."""
    rules = getattr(model, "ep_plan", None) or {}
    names = [name for name, _ in (*model.named_parameters(), *model.named_modules())]
    return {name: rules[pattern_of(name)] for name in names if pattern_of(name) in rules}

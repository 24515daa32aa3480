"""Sharding parameters over data-parallel ranks with FSDP2: one group for each decoder layer and one for the rest.

Weights, gradients and optimizer state are float32. The model computes in the configured precision, its logits
included; gradients are summed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard


@dataclass(frozen=True)
class FSDP2Config:
    """The layout of a model of the transformers backend; the fields are named as in NeMo Automodel's class of this
    name.

    defer_fsdp_grad_sync: sum gradients over ranks once for each step, not for each microbatch.
    """

    sequence_parallel: bool
    tp_plan: Any
    mp_policy: MixedPrecisionPolicy
    offload_policy: CPUOffloadPolicy | None
    activation_checkpointing: bool
    defer_fsdp_grad_sync: bool


def fsdp2_config(dtensor_cfg: Mapping[str, Any], dtype: torch.dtype, cpu_offload: bool, backend: str) -> FSDP2Config:
    """Build the layout. dtype: the precision of the layers. backend: of the collectives."""
    pins = "nccl" in backend and bool(dtensor_cfg.get("pin_host_memory", True))
    return FSDP2Config(
        sequence_parallel=dtensor_cfg["sequence_parallel"],
        tp_plan=dtensor_cfg.get("custom_parallel_plan"),
        mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        offload_policy=CPUOffloadPolicy(pin_memory=pins) if cpu_offload else None,
        activation_checkpointing=bool(dtensor_cfg.get("activation_checkpointing", False)),
        defer_fsdp_grad_sync=dtensor_cfg.get("defer_fsdp_grad_sync", True),
    )


def shard_weights(model: torch.nn.Module, mesh: DeviceMesh, config: FSDP2Config) -> None:
    """Shard the model in place. Call it after tensor parallelism and before the weights are loaded."""
    offload = config.offload_policy or OffloadPolicy()
    whole = set(getattr(model, "_no_split_modules", None) or [])
    layers = [module for module in model.modules() if type(module).__name__ in whole]
    for module in (*layers, model):
        fully_shard(module, mesh=mesh, mp_policy=config.mp_policy, offload_policy=offload)


def release_whole_weights(model: torch.nn.Module) -> None:
    """Have a model hold only this rank's parts of its weights. After a forward pass without a backward pass FSDP's root
    still has its weights whole. They are not the tensors that the optimizer knows, and the next pass would use them.
    """
    model.state_dict()  # before which FSDP releases them, after a pass that failed, too


def discard_gradients(model: torch.nn.Module) -> None:
    """Discard gradients that FSDP has not summed over ranks: a step that failed between microbatches leaves them.

    The optimizer's zero_grad does not reach them: they belong to whole layers, not to the parts of parameters that it
    knows. The next backward pass would add to them.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for parameter in _parameters(module):
                parameter.unsharded_accumulated_grad = None  # where layers compute in 16 bits
                if hasattr(parameter, "_unsharded_param"):  # which the first forward pass makes
                    parameter._unsharded_param.grad = None  # noqa: SLF001  # torch has no public name


def end_failed_backward(model: torch.nn.Module) -> None:
    """Have FSDP end a backward pass that raised, and discard all gradients that it has not summed.

    Autograd calls FSDP at the end of a pass that succeeds only. Without that call the next passes count as parts of the
    failed one, and gradients of some layers are never summed. Nothing is communicated, since other ranks may be
    elsewhere.
    """
    discard_gradients(model)
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        state: Any = model._get_fsdp_state()  # noqa: SLF001  # torch has no public name
        state._root_post_backward_final_callback()  # noqa: SLF001  # older torch has no reset_iter_state
        model.set_requires_gradient_sync(True)  # torch's default; who defers the sums sets it before each pass


def _parameters(module: FSDPModule) -> list[Any]:
    """FSDP's own records of parameters. A module has several groups of them, in older torch one or none."""
    state: Any = module._get_fsdp_state()  # noqa: SLF001  # torch has no public name
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [group for group in (state._fsdp_param_group,) if group is not None]  # noqa: SLF001
    return [parameter for group in groups for parameter in group.fsdp_params]

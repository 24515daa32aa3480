"""Loading a pretrained model with NeMo Automodel, in its own implementation if it has one.

On GPUs the package does everything: from_pretrained makes the model without memory, adds adapters, shards it and loads
each rank's part. That requires CUDA. On the CPU every rank reads the whole model of transformers, and the package
shards it by the same rules; this is for tests and for trying configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from trainer_adapter.automodel.adapters.config import check_keys, enabled_lora_cfg
from trainer_adapter.automodel.choices import device_type
from trainer_adapter.automodel.config import DistributedContext, PolicyConfig, RuntimeConfig
from trainer_adapter.automodel.models.automodel_ranks import mark_norms_of_heads
from trainer_adapter.automodel.models.force_hf import (
    _maybe_set_force_hf,
    architecture_of,
    force_hf_with_tensor_parallelism,
)
from trainer_adapter.automodel.models.packed_sequences import check_own_packing
from trainer_adapter.automodel.packages import SUPPORTED, from_package, require_transformers
from trainer_adapter.automodel.parallel.context import check_attention
from trainer_adapter.automodel.rank import fail_together, report

_REPEATABLE_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention without cuDNN's, see setup_model_and_optimizer."""


def load_automodel(
    config: PolicyConfig, runtime_config: RuntimeConfig, context: DistributedContext
) -> tuple[Any, Any, bool]:
    """Return the model in float32 with its weights, its adapters' PeftConfig or None, and whether it is of
    transformers.

    Base weights are frozen with adapters. A collective call of all ranks.

    Raises NotImplementedError for context parallelism with an own model of the package, for packing with one that is
    not known to keep sequences apart, and, on the CPU, for expert parallelism; RuntimeError for force_hf=False with a
    model that cannot be trained so; ValueError for invalid settings of adapters.
    """
    on_cpu = device_type(config) == "cpu"
    _check_experts(config["dtensor_cfg"], on_cpu)
    adapters = _adapter_config(config["dtensor_cfg"], context.tp_size)
    arguments = _model_kwargs(config, runtime_config, context.tp_size, on_cpu)
    is_hf_model = from_package("get_is_hf_model")(runtime_config.model_config, bool(arguments.get("force_hf")))
    if not is_hf_model and context.cp_size > 1:
        raise NotImplementedError(
            "dtensor_cfg.context_parallel_size > 1: NeMo Automodel's own "
            f"{architecture_of(runtime_config.model_config)} does not use a registered attention. Set "
            "dtensor_cfg.automodel_kwargs.force_hf=true or model_backend=transformers"
        )
    if runtime_config.enable_seq_packing and not is_hf_model:
        check_own_packing(runtime_config.model_config, arguments.get("backend"))
    load = _load_on_cpu if on_cpu else _load_on_gpu
    model = load(config["model_name"], runtime_config, context, adapters, arguments)
    if context.tp_size > 1 and is_hf_model:
        mark_norms_of_heads(model)
    if context.cp_size > 1:
        check_attention(model)
        model.set_attn_implementation(runtime_config.attn_impl)  # on GPUs the package has set another
    return model, adapters, is_hf_model


def _check_experts(dtensor_cfg: Mapping[str, Any], on_cpu: bool) -> None:
    if on_cpu and int(dtensor_cfg.get("expert_parallel_size", 1)) > 1:
        raise NotImplementedError(
            f"dtensor_cfg.expert_parallel_size > 1 needs device=cuda: NeMo Automodel {SUPPORTED}, the newest release "
            "known here, has no experts on the CPU"
        )


def _adapter_config(dtensor_cfg: Mapping[str, Any], tp_size: int) -> Any:
    """The package's PeftConfig, in float32 like all weights; None if dtensor_cfg.lora_cfg is not enabled."""
    lora_cfg = enabled_lora_cfg(dtensor_cfg, tp_size)
    if lora_cfg is None:
        return None
    settings = {key: value for key, value in lora_cfg.items() if key != "enabled"}
    peft_config = from_package("PeftConfig")
    check_keys(settings, peft_config)
    return peft_config.from_dict({**settings, "lora_dtype": "torch.float32"})


def _model_kwargs(config: PolicyConfig, runtime_config: RuntimeConfig, tp_size: int, on_cpu: bool) -> dict[str, Any]:
    """dtensor_cfg.automodel_kwargs with defaults; the user's own mapping is unchanged."""
    chosen: dict[str, Any] = {"use_liger_kernel": False, **(config["dtensor_cfg"].get("automodel_kwargs") or {})}
    if on_cpu:
        if chosen.get("force_hf") is False:
            raise RuntimeError("dtensor_cfg.automodel_kwargs.force_hf=False needs device=cuda")
        chosen["force_hf"] = True
    if tp_size > 1:
        force_hf_with_tensor_parallelism(chosen, runtime_config.model_config)
    _maybe_set_force_hf(chosen, runtime_config.model_config)
    backend = chosen.pop("backend", None)
    if backend is None:
        return chosen
    if chosen.get("force_hf"):
        report(
            "WARNING: dtensor_cfg.automodel_kwargs.backend is ignored: it applies to NeMo Automodel's own models only"
        )
        return chosen
    target = from_package("_resolve_target")(backend["_target_"])
    return {**chosen, "backend": target(**{key: value for key, value in backend.items() if key != "_target_"})}


def _load_on_gpu(
    name: str, runtime_config: RuntimeConfig, context: DistributedContext, adapters: Any, arguments: dict[str, Any]
) -> Any:
    setup = context.fsdp2_config.setup
    model = runtime_config.model_class.from_pretrained(
        name,
        distributed_setup=setup,
        peft_config=adapters,
        torch_dtype=str(runtime_config.model_config.dtype),
        sdpa_method=_REPEATABLE_KERNELS if setup.activation_checkpointing else None,  # None: all
        **_config_kwargs(runtime_config),
        **arguments,
    )
    return model.to("cpu") if runtime_config.cpu_offload else model


def _load_on_cpu(
    name: str, runtime_config: RuntimeConfig, context: DistributedContext, adapters: Any, _arguments: dict[str, Any]
) -> Any:
    model_class = getattr(require_transformers(), runtime_config.model_class.__name__.removeprefix("NeMo"))
    with fail_together(f"loading {name}"):
        model = model_class.from_pretrained(
            name, dtype=torch.float32, use_safetensors=True, **_config_kwargs(runtime_config)
        )
    if adapters is not None:
        from_package("apply_lora_to_linear_modules")(model, adapters)
        _send_adapters(model)
    parallelize = from_package("parallelize_model")
    return parallelize(model, context.fsdp2_config.setup.mesh_context)


def _send_adapters(model: torch.nn.Module) -> None:
    """Send rank 0's adapters to all ranks, because each rank drew its own."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.distributed.broadcast(parameter.data, src=0)


def _config_kwargs(runtime_config: RuntimeConfig) -> dict[str, Any]:
    """Arguments that change the model's configuration; the attention is left out if the model chooses it."""
    kwargs = {"trust_remote_code": True, **runtime_config.hf_config_overrides}
    if runtime_config.is_reward_model:
        kwargs["num_labels"] = runtime_config.model_config.num_labels
    if runtime_config.attn_impl is not None:
        kwargs["attn_implementation"] = runtime_config.attn_impl
    return kwargs

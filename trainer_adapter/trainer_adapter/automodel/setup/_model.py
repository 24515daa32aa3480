"""The model on this rank, its optimizer, and a copy of its initial weights.

FSDP2 and DTensor tensor parallelism shard the model: models of transformers by this package, all others by NeMo
Automodel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from trainer_adapter.automodel.config import (
    DistributedContext,
    ModelAndOptimizerState,
    PolicyConfig,
    RuntimeConfig,
    is_enabled,
    required,
)
from trainer_adapter.automodel.models.automodel_model import load_automodel
from trainer_adapter.automodel.models.backend import require_model_backend
from trainer_adapter.automodel.models.transformers_model import load_transformers_model
from trainer_adapter.automodel.parallel.context import register_attention
from trainer_adapter.automodel.rank import computes_on_gpu, report
from trainer_adapter.automodel.setup._optimizer import build_optimizer, build_scheduler

if TYPE_CHECKING:
    from transformers import AutoTokenizer


def setup_reference_model_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy this rank's part of every entry of the model's state dict to the CPU; later training does not change the
    copy.

    The memory is pinned if this rank computes on a GPU, so that copies to it are direct.
    """
    pin = computes_on_gpu()
    return {name: _cpu_copy(value, pin) for name, value in model.state_dict().items()}


def _cpu_copy(value: torch.Tensor, pin: bool) -> torch.Tensor:
    local = value.to_local() if isinstance(value, DTensor) else value
    return torch.empty_like(local, device="cpu", pin_memory=pin, requires_grad=False).copy_(local.detach())


def setup_model_and_optimizer(
    config: PolicyConfig,
    tokenizer: AutoTokenizer,
    runtime_config: RuntimeConfig,
    distributed_context: DistributedContext,
    checkpoint_manager: Any,
    is_vlm: bool = False,
    init_optimizer: bool = True,
    weights_path: str | None = None,
    optimizer_path: str | None = None,
) -> ModelAndOptimizerState:
    """Load the pretrained model, shard it over the ranks and build its optimizer.

    weights_path, optimizer_path: a checkpoint to continue from, for `checkpoint_manager.load_checkpoint`.
    init_optimizer: False builds neither optimizer nor scheduler. The optimizer has the parameters that need a gradient.

    Raises AssertionError, NotImplementedError or ValueError for a model or a layout that is not supported, RuntimeError
    if another rank failed to read the model's files.
    """
    backend = require_model_backend(config)
    sequence_parallel = distributed_context.tp_size > 1 and distributed_context.fsdp2_config.sequence_parallel
    check_layout(config, runtime_config, distributed_context.cp_size, sequence_parallel, is_vlm, init_optimizer)
    if distributed_context.fsdp2_config.activation_checkpointing:
        # The repeated forward pass may choose cuDNN's attention where the first one did not.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if distributed_context.cp_size > 1:
        runtime_config = runtime_config._replace(attn_impl=register_attention(config))
    load = load_automodel if backend == "automodel" else load_transformers_model
    model, adapters, is_hf_model = load(config, runtime_config, distributed_context)
    by_default = "" if "model_backend" in config["dtensor_cfg"] else " (the default here)"
    source = f"{type(model).__name__} of {backend}{by_default}"
    report(f"[Rank {torch.distributed.get_rank()}] {source}, sharded by FSDP2 and DTensor")
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = tokenizer.pad_token_id  # type: ignore[attr-defined]  # AutoTokenizer is typed as a factory
    optimizer = scheduler = None
    if init_optimizer:
        optimizer = build_optimizer(model, required(config, "optimizer"))
        scheduler = build_scheduler(optimizer, config.get("scheduler"))
    if weights_path is None:
        report("No weights path provided; using the pretrained weights")
    else:
        checkpoint_manager.load_checkpoint(
            model=model,
            weights_path=weights_path,
            optimizer=optimizer,
            optimizer_path=optimizer_path,
            scheduler=scheduler,
        )
    is_moe_model = any("expert" in name for name in model.state_dict())
    return ModelAndOptimizerState(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        is_hf_model=is_hf_model,
        is_moe_model=is_moe_model,
        is_reward_model=runtime_config.is_reward_model,
        model_class=type(model),
        model_config=model.config,
        peft_config=adapters,
        autocast_enabled=is_hf_model or not is_moe_model,
    )


def check_layout(
    config: PolicyConfig, runtime: RuntimeConfig, cp_size: int, sequence_parallel: bool, is_vlm: bool, trains: bool
) -> None:
    """Raise for settings that exclude each other, as setup_model_and_optimizer does before it reads the model."""
    if cp_size > 1:
        _check_context_parallel(runtime, sequence_parallel, is_vlm)
    if runtime.dtype == torch.float16 and trains:
        raise ValueError("precision=float16: losses are not scaled, so small gradients become 0. Train in bfloat16")
    if runtime.is_reward_model and is_enabled(config["dtensor_cfg"], "lora_cfg"):
        raise NotImplementedError(
            "dtensor_cfg.lora_cfg: adapters are not supported for reward models, whose head would be neither trained "
            "nor saved"
        )


def _check_context_parallel(runtime: RuntimeConfig, sequence_parallel: bool, is_vlm: bool) -> None:
    model_type = runtime.model_config.model_type
    if model_type == "gemma3":
        raise AssertionError("Context parallel is not supported for Gemma3ForCausalLM")
    if sequence_parallel:
        raise AssertionError("context parallel can't be used together with sequence parallel: disable one of them")
    if is_vlm:
        raise AssertionError("Context parallel is yet not supported for VLM models")
    if model_type == "qwen3_5":
        raise AssertionError("Context parallel is not supported for dense Qwen3.5 models")
    if runtime.is_reward_model:
        raise NotImplementedError("Context parallel is not supported for reward models: one rank holds the last token")

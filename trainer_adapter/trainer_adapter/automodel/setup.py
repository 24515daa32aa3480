"""From a policy's configuration to a model on this rank and the optimizer that trains it.

A worker calls, in this order, get_tokenizer, validate_and_prepare_config, setup_distributed and
setup_model_and_optimizer, and setup_reference_model_state where it needs the weights that training began with. Every
rank of the job calls each of them; what they choose is written to standard output. The model is divided by FSDP2 and by
DTensor tensor parallelism: one of transformers by this package, or by NeMo Automodel, which also has models of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from trainer_adapter.automodel._context_parallel import register_attention
from trainer_adapter.automodel._device import settle_device
from trainer_adapter.automodel._device_mesh import create_mesh, parallel_sizes, rank_device
from trainer_adapter.automodel._force_hf import _maybe_set_force_hf
from trainer_adapter.automodel._fsdp import fsdp2_config
from trainer_adapter.automodel._lora_config import PeftConfig, peft_config
from trainer_adapter.automodel._model_backend import device_type, require_model_backend
from trainer_adapter.automodel._nemo_automodel_model import load_automodel
from trainer_adapter.automodel._nemo_automodel_ranks import arrange_ranks
from trainer_adapter.automodel._optimizer import build_optimizer, build_scheduler
from trainer_adapter.automodel._pretrained_model import load_divided_model
from trainer_adapter.automodel._report import report
from trainer_adapter.automodel._tokenizer import get_tokenizer
from trainer_adapter.automodel._validation import STRING_TO_DTYPE, validate_and_prepare_config
from trainer_adapter.automodel.config import (
    DistributedContext,
    ModelAndOptimizerState,
    PolicyConfig,
    RuntimeConfig,
    required,
)

if TYPE_CHECKING:
    from transformers import AutoTokenizer

__all__ = [
    "STRING_TO_DTYPE",
    "_maybe_set_force_hf",
    "get_tokenizer",
    "setup_distributed",
    "setup_model_and_optimizer",
    "setup_reference_model_state",
    "validate_and_prepare_config",
]


def setup_reference_model_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of this rank's part of every entry of the model's state dict, on the CPU, which later training leaves as
    it is. The memory is pinned where there is a GPU, so that copies to it need no detour.
    """
    pin = torch.cuda.is_available()
    return {name: _cpu_copy(value, pin) for name, value in model.state_dict().items()}


def _cpu_copy(value: torch.Tensor, pin: bool) -> torch.Tensor:
    local = value.to_local() if isinstance(value, DTensor) else value
    return torch.empty_like(local, device="cpu", pin_memory=pin, requires_grad=False).copy_(local.detach())


def setup_distributed(config: PolicyConfig, runtime_config: RuntimeConfig) -> DistributedContext:
    """Start the process group of all ranks and arrange them.

    The group's collectives are NCCL's, with gloo's for tensors on the CPU where weights are offloaded; gloo's alone
    with dtensor_cfg.device=cpu. Rank and world size come from the environment (RANK, WORLD_SIZE, MASTER_ADDR,
    MASTER_PORT), and the GPU is the one of LOCAL_RANK among those that the process sees.

    Raises ValueError where the ranks cannot be divided as configured, NotImplementedError for offloading on a single
    rank, RuntimeError where GPUs are asked for and there is none.
    """
    device = device_type(config)
    backend = "gloo" if device == "cpu" else "cuda:nccl,cpu:gloo" if runtime_config.cpu_offload else "nccl"
    _start_process_group(device, backend)
    world_size = torch.distributed.get_world_size()
    required(config, "dtensor_cfg.sequence_parallel")
    sizes = parallel_sizes(config["dtensor_cfg"], world_size)
    layout = fsdp2_config(config["dtensor_cfg"], runtime_config.dtype, runtime_config.cpu_offload, backend)
    if world_size == 1 and runtime_config.cpu_offload:
        raise NotImplementedError("CPUOffload doesn't work on single GPU: set dtensor_cfg.cpu_offload=false")
    if require_model_backend(config) == "automodel":
        context = arrange_ranks(config["dtensor_cfg"], sizes, layout)
    else:
        mesh = create_mesh(device, sizes)
        context = DistributedContext(mesh, None, layout, None, sizes.dp, sizes.tp, sizes.cp)
    settle_device(rank_device(device))
    layout_text = f"dp {context.dp_size}, tp {context.tp_size}, cp {context.cp_size}"
    report(f"[Rank {torch.distributed.get_rank()}] {device}, {backend}: {layout_text}")
    return context


def _start_process_group(device: str, backend: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        torch.distributed.init_process_group(backend=backend)
    except (RuntimeError, ValueError) as error:
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("there is no CUDA device; dtensor_cfg.device=cpu asks for training without") from error
        raise


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
    """Load the pretrained model, divide it over the ranks and build what trains it.

    weights_path, optimizer_path: a checkpoint to go on from, for `checkpoint_manager.load_checkpoint`. The optimizer
    holds the parameters that need a gradient; with init_optimizer=False there is no optimizer and no scheduler.

    Raises AssertionError, NotImplementedError or ValueError for a model or a layout that is not supported, RuntimeError
    where another rank failed to read the model's files.
    """
    backend = require_model_backend(config)
    _check_layout(config, runtime_config, distributed_context, is_vlm)
    load = load_automodel if backend == "automodel" else _load_transformers
    model, adapters, is_hf_model = load(config, runtime_config, distributed_context)
    report(f"[Rank {torch.distributed.get_rank()}] {type(model).__name__} of {backend}, divided by FSDP2 and DTensor")
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = tokenizer.pad_token_id  # type: ignore[attr-defined]  # AutoTokenizer stands for all
    optimizer = scheduler = None
    if init_optimizer:
        optimizer = build_optimizer(model, required(config, "optimizer"))
        scheduler = build_scheduler(optimizer, config.get("scheduler"))
    if weights_path is None:
        report("No weights path provided; the weights are the pretrained ones")
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


def _load_transformers(
    config: PolicyConfig, runtime: RuntimeConfig, context: DistributedContext
) -> tuple[Any, PeftConfig | None, bool]:
    """As load_automodel: the model, its adapters, whether it is of transformers."""
    if context.cp_size > 1:
        runtime = runtime._replace(attn_impl=register_attention(config))
    adapters = peft_config(config["dtensor_cfg"], context.tp_size, device_type(config))
    replicas = int(config["dtensor_cfg"].get("dp_replicate_size", 1))
    return load_divided_model(config["model_name"], runtime, context, replicas, adapters), adapters, True


def _check_layout(config: PolicyConfig, runtime: RuntimeConfig, context: DistributedContext, is_vlm: bool) -> None:
    if context.cp_size > 1:
        sequence_parallel = context.tp_size > 1 and context.fsdp2_config.sequence_parallel
        _check_context_parallel(runtime, sequence_parallel, is_vlm)
    if runtime.is_reward_model and (config["dtensor_cfg"].get("lora_cfg") or {}).get("enabled"):
        raise NotImplementedError("dtensor_cfg.lora_cfg: the head of a reward model would be neither trained nor saved")


def _check_context_parallel(runtime: RuntimeConfig, sequence_parallel: bool, is_vlm: bool) -> None:
    model_type = runtime.model_config.model_type
    if model_type == "gemma3":
        raise AssertionError("Context parallel is not supported for Gemma3ForCausalLM")
    if sequence_parallel:
        raise AssertionError("context parallel can't be used together with sequence parallel: set one of them off")
    if is_vlm:
        raise AssertionError("Context parallel is yet not supported for VLM models")
    if model_type == "qwen3_5":
        raise AssertionError("Context parallel is not supported for dense Qwen3.5 models")
    if runtime.is_reward_model:
        raise NotImplementedError("Context parallel is not supported for reward models: one rank holds the last token")

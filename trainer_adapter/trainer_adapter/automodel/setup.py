"""From a policy's configuration to a model on this rank and the optimizer that trains it.

A worker calls, in this order, get_tokenizer, validate_and_prepare_config, setup_distributed and
setup_model_and_optimizer, and setup_reference_model_state where it needs the weights that training began with. Every
rank of the job calls each of them; what they choose is written to standard output. The model is one of transformers,
divided by FSDP2 and by DTensor tensor parallelism. Context parallelism, sequence parallelism, LoRA adapters and models
of NeMo Automodel are refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.distributed.tensor import DTensor

from trainer_adapter.automodel._device_mesh import create_mesh, parallel_sizes
from trainer_adapter.automodel._force_hf import _maybe_set_force_hf
from trainer_adapter.automodel._fsdp import fsdp2_config
from trainer_adapter.automodel._model_backend import device_type, require_model_backend
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
    mesh = create_mesh(device, sizes)
    report(f"[Rank {torch.distributed.get_rank()}] {device}, {backend}: dp {sizes.dp}, tp {sizes.tp}, cp {sizes.cp}")
    return DistributedContext(
        device_mesh=mesh,
        moe_mesh=None,
        fsdp2_config=layout,
        moe_config=None,
        dp_size=mesh["dp"].size(),
        tp_size=mesh["tp"].size(),
        cp_size=mesh["cp"].size(),
    )


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
    model_config = runtime_config.model_config
    backend = require_model_backend(config)
    _check_layout(config, model_config.model_type, distributed_context, is_vlm)
    replicas = int(config["dtensor_cfg"].get("dp_replicate_size", 1))
    model: Any = load_divided_model(config["model_name"], runtime_config, distributed_context, replicas)
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
    return ModelAndOptimizerState(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        is_hf_model=True,
        is_moe_model=any("expert" in name for name in model.state_dict()),
        is_reward_model=runtime_config.is_reward_model,
        model_class=type(model),
        model_config=model.config,
        peft_config=None,
        autocast_enabled=True,
    )


def _check_layout(config: PolicyConfig, model_type: str, context: DistributedContext, is_vlm: bool) -> None:
    sequence_parallel = context.tp_size > 1 and context.fsdp2_config.sequence_parallel
    if context.cp_size > 1:
        _refuse_context_parallel(model_type, sequence_parallel, is_vlm)
    if sequence_parallel:
        raise NotImplementedError("dtensor_cfg.sequence_parallel: activations cannot be divided by tokens yet")
    if _lora_enabled(config["dtensor_cfg"]):
        raise NotImplementedError("dtensor_cfg.lora_cfg: adapters cannot be trained yet")


def _refuse_context_parallel(model_type: str, sequence_parallel: bool, is_vlm: bool) -> NoReturn:
    """What can never be done is told apart from what is not there yet."""
    if model_type == "gemma3":
        raise AssertionError("Context parallel is not supported for Gemma3ForCausalLM")
    if sequence_parallel:
        raise AssertionError("context parallel can't be used together with sequence parallel: set one of them off")
    if is_vlm:
        raise AssertionError("Context parallel is yet not supported for VLM models")
    if model_type == "qwen3_5":
        raise AssertionError("Context parallel is not supported for dense Qwen3.5 models")
    raise NotImplementedError("dtensor_cfg.context_parallel_size > 1: sequences cannot be divided over ranks yet")


def _lora_enabled(dtensor_cfg: Mapping[str, Any]) -> bool:
    return bool((dtensor_cfg.get("lora_cfg") or {}).get("enabled"))

"""The process group of all ranks, and their meshes."""

from __future__ import annotations

import os

import torch

from trainer_adapter.automodel.choices import device_type
from trainer_adapter.automodel.config import DistributedContext, PolicyConfig, RuntimeConfig, required
from trainer_adapter.automodel.models.automodel_ranks import arrange_ranks
from trainer_adapter.automodel.models.backend import require_model_backend
from trainer_adapter.automodel.parallel.fsdp import fsdp2_config
from trainer_adapter.automodel.parallel.mesh import create_mesh, parallel_sizes
from trainer_adapter.automodel.rank import choose_device, rank_device, report


def setup_distributed(config: PolicyConfig, runtime_config: RuntimeConfig) -> DistributedContext:
    """Start the process group of all ranks and arrange them.

    Collectives use NCCL, and gloo for tensors on the CPU if weights are offloaded; with dtensor_cfg.device=cpu they use
    gloo only. Rank and world size come from the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). The GPU is
    number LOCAL_RANK of the visible ones.

    Raises ValueError if the ranks cannot be divided as configured, NotImplementedError for offloading on a single rank,
    RuntimeError if GPUs are configured and there is none.
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
    choose_device(rank_device(device))
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
            raise RuntimeError("no CUDA device found; set dtensor_cfg.device=cpu to train without one") from error
        raise

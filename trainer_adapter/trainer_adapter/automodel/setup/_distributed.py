"""The process group of all ranks, and their meshes."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torch.distributed import distributed_c10d

from trainer_adapter.automodel.choices import device_type
from trainer_adapter.automodel.config import DistributedContext, PolicyConfig, RuntimeConfig, required
from trainer_adapter.automodel.models.automodel_ranks import arrange_ranks
from trainer_adapter.automodel.models.backend import require_model_backend
from trainer_adapter.automodel.parallel.fsdp import fsdp2_config
from trainer_adapter.automodel.parallel.mesh import create_mesh, expert_mesh, parallel_sizes
from trainer_adapter.automodel.rank import choose_device, rank_device, report


def setup_distributed(config: PolicyConfig, runtime_config: RuntimeConfig) -> DistributedContext:
    """Start the process group of all ranks and arrange them.

    Collectives use NCCL, and gloo for tensors on the CPU if weights are offloaded; with dtensor_cfg.device=cpu they use
    gloo only. Rank and world size come from the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). The GPU is
    number LOCAL_RANK of the visible ones, or the only one. A rank that waits in a collective for longer than
    dtensor_cfg.collective_timeout_s fails; with NCCL its process ends.

    Raises ValueError if the ranks cannot be divided as configured or a LOCAL_RANK has no GPU, NotImplementedError for
    offloading on a single rank, RuntimeError if GPUs are configured and there is none.
    """
    device = device_type(config)
    backend = "gloo" if device == "cpu" else "cuda:nccl,cpu:gloo" if runtime_config.cpu_offload else "nccl"
    timeout = timedelta(seconds=config["dtensor_cfg"].get("collective_timeout_s", 1800))
    _start_process_group(device, backend, timeout)
    required(config, "dtensor_cfg.sequence_parallel")
    sizes = parallel_sizes(config["dtensor_cfg"], torch.distributed.get_world_size())
    layout = fsdp2_config(config["dtensor_cfg"], runtime_config.dtype, runtime_config.cpu_offload, backend)
    if require_model_backend(config) == "automodel":
        context = arrange_ranks(config["dtensor_cfg"], sizes, layout)
    else:
        mesh = create_mesh(device, sizes)
        context = DistributedContext(mesh, expert_mesh(mesh, sizes.ep), layout, None, sizes.dp, sizes.tp, sizes.cp)
    choose_device(rank_device(device))
    _seed(config, context)
    layout_text = f"dp {context.dp_size}, tp {context.tp_size}, cp {context.cp_size}"
    waits = f"collectives wait {timeout.total_seconds():g} s"
    report(f"[Rank {torch.distributed.get_rank()}] {device}, {backend}: {layout_text}; {waits}")
    return context


def _seed(config: PolicyConfig, context: DistributedContext) -> None:
    """Ranks with different tokens drop out different elements. Tensor-parallel ranks have the same tokens."""
    mesh = context.device_mesh
    number = mesh["dp"].get_local_rank() * context.cp_size + mesh["cp"].get_local_rank()
    seed = config.get("seed")
    if number or seed is not None:
        torch.manual_seed((torch.initial_seed() if seed is None else seed) + number)


def _start_process_group(device: str, backend: str, timeout: timedelta) -> None:
    bound: torch.device | None = None
    if device == "cuda" and torch.cuda.is_available():
        gpu = torch.device("cuda", choose_gpu(int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()))
        torch.cuda.set_device(gpu)
        # NCCL then connects here, where a wrong card shows, and meshes split its communicator instead of making theirs.
        # Torch splits groups of one backend only.
        bound = gpu if backend == "nccl" else None
    # The groups of meshes get torch's default, not the timeout of the group of all ranks.
    distributed_c10d.default_pg_timeout = timeout
    distributed_c10d.default_pg_nccl_timeout = timeout  # type: ignore[attr-defined]  # torch's own code reads it there
    try:
        torch.distributed.init_process_group(backend=backend, timeout=timeout, device_id=bound)
    except (RuntimeError, ValueError) as error:
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("no CUDA device found; set dtensor_cfg.device=cpu to train without one") from error
        raise


def choose_gpu(local_rank: int, visible: int) -> int:
    """Return the GPU of this rank. A launcher shows a process all GPUs of its host, or only its own."""
    if visible > 1 and local_rank >= visible:
        raise ValueError(f"LOCAL_RANK={local_rank}, but this process sees {visible} GPUs: start one rank for each GPU")
    return local_rank if visible > 1 else 0

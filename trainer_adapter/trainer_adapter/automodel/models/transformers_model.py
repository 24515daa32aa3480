"""Loading a pretrained model of transformers; only rank 0 ever holds all its weights.

Every rank makes the model without memory (on the meta device) and shards it. Rank 0 reads the files, in any layout that
transformers supports, and sends each rank its part. Buffers that are not in a state dict, such as the frequencies of
rotary embeddings, are sent too: on the meta device they have no values.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from trainer_adapter.automodel.adapters.config import PeftConfig
from trainer_adapter.automodel.adapters.layers import add_adapters, initial_adapters
from trainer_adapter.automodel.config import DistributedContext, RuntimeConfig
from trainer_adapter.automodel.parallel.context import check_attention
from trainer_adapter.automodel.parallel.fsdp import FSDP2Config, shard_weights
from trainer_adapter.automodel.parallel.mesh import weight_mesh
from trainer_adapter.automodel.parallel.tensor import parallelize_tensors
from trainer_adapter.automodel.rank import fail_together, rank_device


def load_transformers_model(
    model_name: str,
    runtime_config: RuntimeConfig,
    context: DistributedContext,
    dp_replicate: int,
    adapters: PeftConfig | None,
) -> torch.nn.Module:
    """Return the model in float32 with its weights, tied as its configuration says; base weights are frozen with
    adapters.

    A collective call of all ranks. Rank 0 raises its errors of reading the files; other ranks raise RuntimeError.
    """
    model = _empty_model(runtime_config)
    if context.cp_size > 1:
        check_attention(model)
    config: FSDP2Config = context.fsdp2_config
    if context.tp_size > 1:
        parallelize_tensors(model, context.device_mesh["tp"], config.tp_plan, config.sequence_parallel)
        model.tie_weights()  # sharding splits a tied parameter into two
    if adapters is not None:
        add_adapters(model, adapters)
    if config.activation_checkpointing:
        # transformers 5.23 renamed the method and warns for the old name.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    shard_weights(model, weight_mesh(context.device_mesh, dp_replicate), config)
    device = rank_device(context.device_mesh.device_type)
    model.to_empty(device=torch.device("cpu") if runtime_config.cpu_offload else device)
    model.tie_weights()  # so does to_empty
    _send_weights(model, _read_on_rank_0(model_name, runtime_config), device)
    loaded: torch.nn.Module = model
    return loaded


def _model_arguments(runtime_config: RuntimeConfig) -> dict[str, Any]:
    """The configuration, copied because models write to theirs, and the chosen attention."""
    arguments = {"config": copy.deepcopy(runtime_config.model_config), "dtype": torch.float32}
    return arguments | {"attn_implementation": runtime_config.attn_impl, "trust_remote_code": True}


def _empty_model(runtime_config: RuntimeConfig) -> Any:
    with torch.device("meta"):
        return runtime_config.model_class.from_config(**_model_arguments(runtime_config))


def _read_on_rank_0(model_name: str, runtime_config: RuntimeConfig) -> Any:
    """The whole model on rank 0's CPU, None elsewhere. Only safetensors are read, because pickled weights can
    run code.
    """
    with fail_together(f"loading {model_name}"):
        if torch.distributed.get_rank() == 0:
            arguments = _model_arguments(runtime_config)
            return runtime_config.model_class.from_pretrained(model_name, use_safetensors=True, **arguments)
    return None


@torch.no_grad()
def _send_weights(model: torch.nn.Module, source: torch.nn.Module | None, device: torch.device) -> None:
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    state = {} if source is None else source.state_dict() | initial_adapters(model)
    set_model_state_dict(model, state, options=options)
    for name, buffer in model.named_buffers():
        sent = torch.empty_like(buffer, device=device) if source is None else source.get_buffer(name).to(device)
        torch.distributed.broadcast(sent, src=0)
        buffer.copy_(sent)

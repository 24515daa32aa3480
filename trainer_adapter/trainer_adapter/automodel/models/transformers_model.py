"""A pretrained model of transformers on every rank, of which no rank but 0 ever holds all weights.

Every rank makes the model without memory (on the meta device) and divides it; rank 0 reads the files, in whatever
layout transformers knows, and sends each rank its part. Buffers that no state dict contains, such as the rotary
embedding's frequencies, are sent too: without memory they never got their values.
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
from trainer_adapter.automodel.rank import failing_together, rank_device


def load_divided_model(
    model_name: str,
    runtime_config: RuntimeConfig,
    context: DistributedContext,
    dp_replicate: int,
    adapters: PeftConfig | None,
) -> torch.nn.Module:
    """The model in float32, its weights loaded, tied where its configuration ties them, frozen beside adapters.

    Every rank must call this. Raises what rank 0 met while reading the files there, RuntimeError elsewhere.
    """
    model = _empty_model(runtime_config)
    if context.cp_size > 1:
        check_attention(model)
    config: FSDP2Config = context.fsdp2_config
    if context.tp_size > 1:
        parallelize_tensors(model, context.device_mesh["tp"], config.tp_plan, config.sequence_parallel)
        model.tie_weights()  # dividing made two parameters of a tied one
    if adapters is not None:
        add_adapters(model, adapters)
    if config.activation_checkpointing:
        # The new name of transformers 5.23 for the old one, which warns there.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    shard_weights(model, weight_mesh(context.device_mesh, dp_replicate), config)
    device = rank_device(context.device_mesh.device_type)
    model.to_empty(device=torch.device("cpu") if runtime_config.cpu_offload else device)
    model.tie_weights()  # so did giving them memory
    _fill(model, _read_on_first_rank(model_name, runtime_config), device)
    loaded: torch.nn.Module = model
    return loaded


def _model_arguments(runtime_config: RuntimeConfig) -> dict[str, Any]:
    """A copy of the configuration, because models write to theirs, and the chosen attention."""
    arguments = {"config": copy.deepcopy(runtime_config.model_config), "dtype": torch.float32}
    return arguments | {"attn_implementation": runtime_config.attn_impl, "trust_remote_code": True}


def _empty_model(runtime_config: RuntimeConfig) -> Any:
    with torch.device("meta"):
        return runtime_config.model_class.from_config(**_model_arguments(runtime_config))


def _read_on_first_rank(model_name: str, runtime_config: RuntimeConfig) -> Any:
    """The whole model on rank 0's CPU, None elsewhere; from safetensors only, since pickled weights can run code."""
    with failing_together(f"loading {model_name}"):
        if torch.distributed.get_rank() == 0:
            arguments = _model_arguments(runtime_config)
            return runtime_config.model_class.from_pretrained(model_name, use_safetensors=True, **arguments)
    return None


@torch.no_grad()
def _fill(model: torch.nn.Module, source: torch.nn.Module | None, device: torch.device) -> None:
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    state = {} if source is None else source.state_dict() | initial_adapters(model)
    set_model_state_dict(model, state, options=options)
    for name, buffer in model.named_buffers():
        sent = torch.empty_like(buffer, device=device) if source is None else source.get_buffer(name).to(device)
        torch.distributed.broadcast(sent, src=0)
        buffer.copy_(sent)

"""Loading a pretrained model of transformers.

Every rank makes the model without memory (on the meta device), shards it, and reads its own part of the files. That is
possible if the files have the model's weights under the model's own names. Otherwise transformers has to convert them
(experts that are fused, a base model without a head): rank 0 reads the whole model and sends each rank its part.
Buffers that are not in a state dict, such as the frequencies of rotary embeddings, are sent in any case: on the meta
device they have no values.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from trainer_adapter._exchange import extremes_over
from trainer_adapter.automodel.adapters.config import PeftConfig, peft_config
from trainer_adapter.automodel.adapters.layers import add_adapters, initial_adapters
from trainer_adapter.automodel.checkpoint._files import own_weights, read_tensors
from trainer_adapter.automodel.choices import device_type
from trainer_adapter.automodel.config import DistributedContext, PolicyConfig, RuntimeConfig
from trainer_adapter.automodel.parallel.context import check_attention
from trainer_adapter.automodel.parallel.experts import divide_experts
from trainer_adapter.automodel.parallel.fsdp import FSDP2Config, shard_weights
from trainer_adapter.automodel.parallel.mesh import weight_mesh
from trainer_adapter.automodel.parallel.tensor import parallelize_tensors
from trainer_adapter.automodel.rank import compute_device, fail_together, rank_device


def load_transformers_model(
    config: PolicyConfig, runtime_config: RuntimeConfig, context: DistributedContext
) -> tuple[Any, PeftConfig | None, bool]:
    """Return the model in float32 with its weights, tied as its configuration says, its adapters' PeftConfig or None,
    and True, because it is of transformers; see load_automodel.

    Base weights are frozen with adapters. A collective call of all ranks. Rank 0 raises its errors of reading the
    files; other ranks raise RuntimeError.
    """
    model_name, layout = config["model_name"], config["dtensor_cfg"]
    fsdp: FSDP2Config = context.fsdp2_config
    adapters = peft_config(layout, context.tp_size, device_type(config))
    with torch.device("meta"):
        model = _new_model(runtime_config)
    folder = _folder_of_parts(model_name, model)
    if context.cp_size > 1:
        check_attention(model)
    if context.tp_size > 1:
        parallelize_tensors(model, context.device_mesh["tp"], fsdp.tp_plan, fsdp.sequence_parallel)
        model.tie_weights()  # sharding splits a tied parameter into two
    if adapters is not None:
        add_adapters(model, adapters)
    if fsdp.activation_checkpointing:
        # transformers 5.23 renamed the method and warns for the old name.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    if context.moe_mesh is not None:
        divide_experts(model, context.moe_mesh, context.device_mesh["tp"], fsdp)
    shard_weights(model, weight_mesh(context.device_mesh, int(layout.get("dp_replicate_size", 1))), fsdp)
    device = rank_device(context.device_mesh.device_type)
    model.to_empty(device=torch.device("cpu") if runtime_config.cpu_offload else device)
    model.tie_weights()  # so does to_empty
    if folder is None:
        source = _read_on_rank_0(model_name, runtime_config)
        _send_weights(model, {} if source is None else source.state_dict() | initial_adapters(model))
    else:
        source = _without_values(runtime_config)
        read_tensors(folder, own_weights(model))
        if adapters is not None:
            _send_weights(model, {} if source is None else initial_adapters(model), strict=False)
    _send_buffers(model, source, device)
    return model, adapters, True


def _folder_of_parts(model_name: str, model: Any) -> Path | None:
    """The folder of safetensors files that every rank can read its part of; None on all ranks if one of them cannot.

    model: before it is sharded. A collective call of all ranks. If one has damaged files, all raise.
    """
    with fail_together(f"reading the files of {model_name}"):
        folder = _local_folder(model_name)
        fits = folder is not None and _fits(folder, model)
    return folder if extremes_over(int(fits), None, compute_device())[0] else None


def _local_folder(model_name: str) -> Path | None:
    from huggingface_hub import snapshot_download  # comes with transformers, which may not be installed
    from huggingface_hub.errors import LocalEntryNotFoundError

    if Path(model_name).is_dir():
        return Path(model_name)
    try:
        return Path(snapshot_download(model_name, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):  # not here yet, or no name that a hub has
        return None


def _fits(folder: Path, model: Any) -> bool:
    from transformers.conversion_mapping import get_model_conversion_mapping  # may not be installed

    is_quantized = getattr(model.config, "quantization_config", None) is not None
    if is_quantized or get_model_conversion_mapping(model, add_legacy=False) or not any(folder.glob("*.safetensors")):
        return False
    held = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return all(getattr(held.get(name), "size", None) == value.shape for name, value in own_weights(model).items())


def _model_arguments(runtime_config: RuntimeConfig) -> dict[str, Any]:
    """The configuration, copied because models write to theirs, and the chosen attention."""
    arguments = {"config": copy.deepcopy(runtime_config.model_config), "dtype": torch.float32}
    return arguments | {"attn_implementation": runtime_config.attn_impl, "trust_remote_code": True}


def _new_model(runtime_config: RuntimeConfig) -> Any:
    return runtime_config.model_class.from_config(**_model_arguments(runtime_config))


def _without_values(runtime_config: RuntimeConfig) -> Any:
    """On rank 0 a model whose buffers are on the CPU and whose parameters have no memory; None elsewhere.

    Each parameter loses its memory as soon as its module has it: a whole model would have to be reserved, even if it
    were never touched.
    """
    if torch.distributed.get_rank() != 0:
        return None
    from transformers.initialization import no_init_weights  # transformers may not be installed

    def without_memory(_module: torch.nn.Module, _name: str, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        return torch.nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    # Torch's annotation forgets that a hook may return another parameter.
    hook = register_module_parameter_registration_hook(without_memory)  # type: ignore[arg-type]
    try:
        with no_init_weights():
            return _new_model(runtime_config)
    finally:
        hook.remove()


def _read_on_rank_0(model_name: str, runtime_config: RuntimeConfig) -> Any:
    """The whole model on rank 0's CPU, None elsewhere. Only safetensors are read, because pickled weights can
    run code.
    """
    with fail_together(f"loading {model_name}"):
        if torch.distributed.get_rank() == 0:
            arguments = _model_arguments(runtime_config)
            return runtime_config.model_class.from_pretrained(model_name, use_safetensors=True, **arguments)
    return None


def _send_weights(model: torch.nn.Module, state: dict[str, Any], strict: bool = True) -> None:
    """Send rank 0's weights. strict: they are all of the model's."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=strict)
    set_model_state_dict(model, state, options=options)


@torch.no_grad()
def _send_buffers(model: torch.nn.Module, source: torch.nn.Module | None, device: torch.device) -> None:
    sent_already = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name not in sent_already:
            own = buffer.to_local() if isinstance(buffer, DTensor) else buffer  # whole on every rank
            sent = torch.empty_like(own, device=device) if source is None else source.get_buffer(name).to(device)
            torch.distributed.broadcast(sent, src=0)
            own.copy_(sent)

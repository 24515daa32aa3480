"""The model of a configuration as the worker would divide it: made without memory, by one of ranks that do not exist.

The worker's own functions check the configuration and divide the model, on torch's meta device and over its fake
process group, whose collectives do nothing. So a layout that the worker refuses is refused here, in the same words.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import fields, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from dataplane_client.batched_data_dict import BatchedDataDict
from trainer_adapter.automodel.adapters.config import PeftConfig, enabled_lora_cfg, peft_config
from trainer_adapter.automodel.adapters.layers import adapted_layers, add_adapters
from trainer_adapter.automodel.choices import context_parallel_attention, device_type, packed_attention
from trainer_adapter.automodel.config import PolicyConfig, RuntimeConfig, check_types, is_enabled, required
from trainer_adapter.automodel.data._microbatches import _token_divisor
from trainer_adapter.automodel.parallel.fsdp import fsdp2_config, shard_weights
from trainer_adapter.automodel.parallel.mesh import ParallelSizes, create_mesh, parallel_sizes, weight_mesh
from trainer_adapter.automodel.parallel.tensor import parallelize_tensors
from trainer_adapter.automodel.setup._model import check_layout
from trainer_adapter.automodel.setup._optimizer import build_optimizer
from trainer_adapter.automodel.setup._validation import validate_and_prepare_config
from trainer_adapter.microbatch_args import microbatch_args, width_multiple
from trainer_adapter.pad_target import rounded_up
from trainer_adapter.plan._law import FLOAT32, DecoderSizes, RankWeights, Work

_READ = (
    *("model_name", "precision", "train_global_batch_size", "sequence_packing", "dtensor_cfg.cpu_offload"),
    *("dtensor_cfg.sequence_parallel", "dtensor_cfg.activation_checkpointing"),
)
"""Settings without a default."""
_LAYER = {
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.act_fn"),
    *("input_layernorm", "post_attention_layernorm", "self_attn", "mlp"),
}
_HEAD_NORMS = {"self_attn.q_norm", "self_attn.k_norm"}


def read_layout(config: PolicyConfig, ranks: int, row_tokens: int | None) -> tuple[DecoderSizes, RankWeights, Work]:
    """Sizes of the model, of this rank's weights, and of a microbatch.

    ranks: of the job. row_tokens: of the longest row; None: microbatches have a number of tokens of their own.

    Raises what the worker raises for the same configuration; ValueError for ranks or rows that cannot be divided,
    NotImplementedError for a model whose activations the law does not know.
    """
    check_types(config)
    for path in _READ:
        required(config, path)
    microbatch_args(config, "train")  # raises for settings that exclude each other
    if ranks < 1:
        raise ValueError(f"--ranks must be positive, not {ranks}")
    sizes = parallel_sizes(config["dtensor_cfg"], ranks)
    if sizes.ep > 1:
        raise NotImplementedError("dtensor_cfg.expert_parallel_size: the plan knows no experts; it must be 1")
    runtime = _validated(config)
    work = _work(config, runtime, sizes, row_tokens)
    check_layout(config, runtime, work.cp, work.sequence_parallel, is_vlm=False, trains=True)
    adapters = _adapters(config, sizes.tp)
    with torch.device("meta"):
        model = runtime.model_class.from_config(copy.deepcopy(runtime.model_config), dtype=torch.float32)
    decoder = _decoder(model)
    with _rank_of(ranks):
        weights = _weights(model, config, runtime, sizes, adapters)
    return _with_adapters(decoder, model), weights, work


def _validated(config: PolicyConfig) -> RuntimeConfig:
    """Checked as for the CPU, because this machine need have neither the job's GPUs nor their kernels; context parallel
    takes none of these.
    """
    layout = {**config["dtensor_cfg"], "device": "cpu", "model_backend": "transformers"}
    layout.pop("automodel_kwargs", None)
    is_whole = layout.get("context_parallel_size", 1) == 1
    if is_whole and is_enabled(config, "sequence_packing"):
        with suppress(ImportError):  # of kernels
            packed_attention(config)
    packing = {key: value for key, value in config["sequence_packing"].items() if key != "attention" or not is_whole}
    cpu: Any = {**config, "dtensor_cfg": layout, "sequence_packing": packing, "dequantize_base_checkpoint": False}
    with redirect_stdout(io.StringIO()):  # notices of a rank that sets up
        runtime = validate_and_prepare_config(cpu, None, 0)
    if runtime.is_reward_model:
        raise NotImplementedError("reward_model_cfg: the plan is for policies, whose loss is over logits")
    return runtime


def _adapters(config: PolicyConfig, tp: int) -> PeftConfig | None:
    """NeMo Automodel has settings of its own, which do not change what is planned."""
    layout = config["dtensor_cfg"]
    lora_cfg = enabled_lora_cfg(layout, tp)
    if lora_cfg is None or layout.get("model_backend") != "automodel":
        return peft_config(layout, tp, device_type(config))
    known = {field.name for field in fields(PeftConfig)}
    return PeftConfig.from_dict({key: value for key, value in lora_cfg.items() if key in known})


# --- the microbatch ---


def _work(config: PolicyConfig, runtime: RuntimeConfig, sizes: ParallelSizes, row_tokens: int | None) -> Work:
    layout = config["dtensor_cfg"]
    gathers = sizes.cp > 1 and context_parallel_attention(config) == "gathered"
    kernel = config["sequence_packing"].get("attention", "flash" if device_type(config) == "cuda" else "sdpa")
    own_rows = _rows_of_rank(config, sizes.dp)
    tokens, row = _tokens(config, sizes, row_tokens)
    return Work(
        element=runtime.dtype.itemsize,
        tokens=tokens,
        row_tokens=row,
        tp=sizes.tp,
        cp=sizes.cp,
        sequence_parallel=bool(layout["sequence_parallel"]) and sizes.tp > 1,
        checkpointing=bool(layout["activation_checkpointing"]),
        has_mask=gathers or (runtime.enable_seq_packing and kernel == "sdpa"),
        gathers=gathers,
        is_deferred=bool(layout.get("defer_fsdp_grad_sync", True)),
        several=own_rows > _rows_at_once(config),
        cpu_offload=runtime.cpu_offload,
    )


def _rows_of_rank(config: PolicyConfig, dp: int) -> int:
    rows, at_once = int(config["train_global_batch_size"]), _rows_at_once(config)
    if rows % dp:
        raise ValueError(f"train_global_batch_size={rows} is not a multiple of the {dp} data-parallel ranks")
    if rows // dp % at_once:
        raise ValueError(f"train_micro_batch_size={at_once} does not divide the {rows // dp} rows of a rank")
    return rows // dp


def _rows_at_once(config: PolicyConfig) -> int:
    """Of a fixed microbatch. Others have fewer rows than a step unless it has a single one."""
    is_fixed = not (is_enabled(config, "dynamic_batching") or is_enabled(config, "sequence_packing"))
    return int(required(config, "train_micro_batch_size")) if is_fixed else 1


def _tokens(config: PolicyConfig, sizes: ParallelSizes, row_tokens: int | None) -> tuple[int, int]:
    """Of a microbatch, and of its longest row; a packed microbatch is one row, a dynamic one may be."""
    if row_tokens is not None and row_tokens < 1:
        raise ValueError(f"--row-tokens must be positive, not {row_tokens}")
    longest = row_tokens or 1
    width = rounded_up(longest, width_multiple(config))
    for block in ("dynamic_batching", "sequence_packing"):
        if is_enabled(config, block):
            row = {"input_ids": torch.empty(1, width, 0), "input_lengths": torch.tensor([longest])}
            microbatch_args(config, "train").shard(BatchedDataDict(row), 1, None)  # raises for a row over the budget
            tokens = rounded_up(required(config, f"{block}.train_mb_tokens"), _token_divisor(config, sizes.cp))
            return tokens, tokens
    if row_tokens is None:
        raise ValueError("the number of tokens of a row is unknown: pass --row-tokens, those of the longest row")
    return _rows_at_once(config) * width, width


# --- the model ---


def _decoder(model: Any) -> DecoderSizes:
    config, kind = model.config, type(model).__name__
    layers = getattr(getattr(model, "model", None), "layers", None)
    if not layers or not hasattr(model, "lm_head"):
        raise NotImplementedError(f"the plan does not know the activations of {kind}: it has no decoder layers")
    for layer in layers:
        names = {name for name, _ in layer.named_modules() if name}
        odd = names ^ _LAYER if not names & _HEAD_NORMS else names ^ (_LAYER | _HEAD_NORMS)
        if odd:
            raise NotImplementedError(
                f"the plan does not know the activations of {kind}: its layers differ from those of Llama, Qwen2 and "
                f"Qwen3 in {', '.join(sorted(odd))}"
            )
    heads = config.num_attention_heads
    return DecoderSizes(
        layers=len(layers),
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        head_norms=bool({name for name, _ in layers[0].named_modules()} & _HEAD_NORMS),
    )


def _with_adapters(decoder: DecoderSizes, model: torch.nn.Module) -> DecoderSizes:
    ranks = [layer.lora_A.weight.shape[0] for layer in adapted_layers(model).values()]
    return replace(decoder, adapter_rank=sum(ranks) // decoder.layers)


@contextmanager
def _rank_of(ranks: int) -> Iterator[None]:
    """This process as rank 0, whose parts are the largest, of ranks that do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # torch has no public name for it

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def _weights(
    model: Any, config: PolicyConfig, runtime: RuntimeConfig, sizes: ParallelSizes, adapters: PeftConfig | None
) -> RankWeights:
    mesh = create_mesh("cpu", sizes)
    layout = fsdp2_config(config["dtensor_cfg"], runtime.dtype, False, "fake")
    if sizes.tp > 1:
        parallelize_tensors(model, mesh["tp"], layout.tp_plan, layout.sequence_parallel)
        model.tie_weights()  # sharding splits a tied parameter into two
    if adapters is not None:
        add_adapters(model, adapters)
    groups = _groups(model)
    shard_weights(model, weight_mesh(mesh, sizes.dp_replicate), layout)
    own = {name: _own(parameter) for name, parameter in model.named_parameters()}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = _optimizer_tensors(config, [own[name] for name in own if name in trained])
    root, layers = groups[0], groups[1:]
    numbers = {name: part.numel() for name, part in own.items()}
    return RankWeights(
        own=sum(numbers.values()),
        trained_whole=_sum_of(trained, *groups),
        trained_own=_sum_of(trained, numbers),
        root=sum(root.values()),
        layer=max(sum(group.values()) for group in layers),
        trained_root=_sum_of(trained, root),
        trained_layer=max(_sum_of(trained, group) for group in layers),
        optimizer_bytes=sum(optimizer),
        step_bytes=FLOAT32 * _sum_of(trained, numbers) if _is_foreach(config) else 0,
        tensors=[FLOAT32 * number for number in numbers.values()],
        entries=[_own(value).numel() * value.itemsize for value in model.state_dict().values()],
        optimizer_tensors=optimizer,
    )


def _groups(model: Any) -> list[dict[str, int]]:
    """Numbers of elements of parameters by name, as FSDP groups them: the root's, then each layer's."""
    groups: dict[str, dict[str, int]] = {"": {}}
    whole = set(getattr(model, "_no_split_modules", None) or [])
    wrapped = [name for name, module in model.named_modules() if type(module).__name__ in whole]
    for name, parameter in model.named_parameters():
        group = next((prefix for prefix in wrapped if name.startswith(f"{prefix}.")), "")
        groups.setdefault(group, {})[name] = _own(parameter).numel()
    return list(groups.values())


def _own(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _sum_of(names: set[str], *groups: Mapping[str, int]) -> int:
    return sum(number for group in groups for name, number in group.items() if name in names)


def _optimizer_tensors(config: PolicyConfig, parts: list[torch.Tensor]) -> list[int]:
    """Bytes of each tensor that the optimizer holds after a step over these parts, which have no memory."""
    if not config.get("optimizer"):
        raise KeyError("the policy config must set optimizer: without it nothing is trained")
    holder = torch.nn.ParameterList([torch.nn.Parameter(torch.empty_like(part)) for part in parts])
    settings = required(config, "optimizer")
    kwargs = {key: value for key, value in (settings.get("kwargs") or {}).items() if key != "fused"}  # needs a device
    optimizer = build_optimizer(holder, {**settings, "kwargs": kwargs})
    for parameter in holder:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    state = (value for values in optimizer.state.values() for value in values.values())
    return [value.numel() * value.itemsize for value in state if isinstance(value, torch.Tensor) and value.ndim]


def _is_foreach(config: PolicyConfig) -> bool:
    """Torch's default on GPUs, unless the optimizer's arguments choose."""
    kwargs = required(config, "optimizer").get("kwargs") or {}
    chosen = kwargs.get("foreach")
    return device_type(config) == "cuda" and not kwargs.get("fused") if chosen is None else bool(chosen)

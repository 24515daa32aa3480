"""Tensor parallelism: layers divided over ranks (Megatron-LM, arXiv:1909.08053), by the names of their modules.

The first projection of attention and of the MLP gives every rank some heads or columns; the second sums over ranks.
Embeddings and logits are sharded by vocabulary: the model returns logits as a DTensor [B,S,V] sharded on V. Modules
without a rule (norms, a score head) become DTensors too, replicated on every rank: optimizers and gradient clipping
need all parameters on one mesh.

With sequence parallelism (arXiv:2205.05198) a rank keeps only its own tokens between these blocks. The embedding
returns a DTensor [B,S,H] sharded on S; norms and residual sums work on the shards; a block gathers the tokens once for
all its first projections; and the sum over ranks returns each rank its part. Hidden states are DTensors throughout, so
the model sees S tokens and makes masks for S.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from trainer_adapter.automodel.dotted_path import import_named

Plan = Mapping[str, ParallelStyle]


def parallelize_tensors(
    model: torch.nn.Module, mesh: DeviceMesh, custom_plan: Plan | str | None, sequence_parallel: bool = False
) -> None:
    """Divide the model in place.

    custom_plan: styles by patterns of module names, or the dotted path of such a mapping or of a function that returns
    one; replaces the built-in rules, including those of sequence parallelism.

    Raises ValueError for a model without matching rules, for sizes that mesh.size() does not divide and for a path
    where nothing is, TypeError for a custom plan of another kind.
    """
    plan = _built_in_plan(model, mesh.size(), sequence_parallel) if custom_plan is None else _check_plan(custom_plan)
    parallelize_module(model, mesh, plan)
    for module in list(model.modules()):
        own = list(module.parameters(recurse=False))
        if own and not isinstance(own[0], DTensor):
            _WholeCopy()._apply(module, mesh)  # noqa: SLF001  # parallelize_module takes names only


def _check_plan(plan: object) -> dict[str, ParallelStyle]:
    if isinstance(plan, str):
        plan = import_named(plan, "dtensor_cfg.custom_parallel_plan")
        plan = plan() if inspect.isfunction(plan) else plan
    if not isinstance(plan, Mapping) or not all(isinstance(style, ParallelStyle) for style in plan.values()):
        raise TypeError(
            "dtensor_cfg.custom_parallel_plan must map patterns of module names to ParallelStyle objects, or be the "
            f"dotted path of such a mapping or of a function that returns one, not {plan!r}"
        )
    return dict(plan)


def _built_in_plan(model: torch.nn.Module, ranks: int, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """The rules that match a module. Torch warns of the others; some models have no logits or no norms of heads."""
    names = {name for name, _ in model.named_modules()}
    _check_names(model, names)
    _check_sizes(model.config, ranks)
    plan = _decoder_plan() | (_sequence_plan(names) if sequence_parallel else {})
    return {pattern: style for pattern, style in plan.items() if pattern.replace("*", "0") in names}


def _decoder_plan() -> dict[str, ParallelStyle]:
    """Rules for Llama, Mistral, Qwen2, Qwen3 and models with the same module names."""
    layer = "model.layers.*"
    return {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        **{f"{layer}.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        # Norms of single heads (Qwen3) see this rank's heads only: [B,S,heads,D] sharded on 2. The gradient of their
        # weight is a sum over ranks.
        f"{layer}.self_attn.q_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
        f"{layer}.self_attn.k_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
        f"{layer}.self_attn.o_proj": RowwiseParallel(),
        f"{layer}.mlp.gate_proj": ColwiseParallel(),
        f"{layer}.mlp.up_proj": ColwiseParallel(),
        f"{layer}.mlp.down_proj": RowwiseParallel(),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }


def _sequence_plan(names: set[str]) -> dict[str, ParallelStyle]:
    """The rules that sequence parallelism changes."""
    layer = "model.layers.*"
    norms = [name.replace(".0.", ".*.") for name in names if re.fullmatch(r"model\.layers\.0\.\w*norm\w*", name)]
    tokens, whole = Shard(1), Replicate()
    return {
        "model.embed_tokens": _TokenEmbedding(),
        **{norm: SequenceParallel() for norm in [*norms, "model.norm"]},
        f"{layer}.self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": tokens}, desired_input_kwarg_layouts={"hidden_states": whole}
        ),
        f"{layer}.self_attn.o_proj": RowwiseParallel(output_layouts=tokens, use_local_output=False),
        f"{layer}.mlp": PrepareModuleInput(input_layouts=tokens, desired_input_layouts=whole),
        f"{layer}.mlp.down_proj": RowwiseParallel(output_layouts=tokens, use_local_output=False),
        "lm_head": ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False),
    }


class _TokenEmbedding(RowwiseParallel):
    """An embedding that returns every rank its own tokens."""

    def __init__(self) -> None:
        super().__init__(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False)

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        module.register_forward_pre_hook(partial(_check_tokens, device_mesh.size()))
        return super()._apply(module, device_mesh)


def _check_tokens(ranks: int, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    tokens = inputs[0].shape[1]
    if tokens % ranks:
        raise ValueError(
            f"input_ids: dtensor_cfg.sequence_parallel cannot divide rows of {tokens} tokens by "
            f"tensor_parallel_size={ranks}: set make_sequence_length_divisible_by to a multiple of {ranks}"
        )


_MODULES = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


def _check_names(model: torch.nn.Module, names: set[str]) -> None:
    missing = [name for name in _MODULES if f"model.layers.0.{name}" not in names]
    if missing:
        raise ValueError(
            f"no tensor-parallel plan for {type(model).__name__}: its layers have no {', '.join(missing)}. "
            "Set dtensor_cfg.custom_parallel_plan, or tensor_parallel_size=1"
        )


def _check_sizes(config: Any, ranks: int) -> None:
    names = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    odd = [f"{name}={size}" for name in names if (size := getattr(config, name, 0)) % ranks]
    if odd:
        raise ValueError(f"dtensor_cfg.tensor_parallel_size={ranks} does not divide the model's {', '.join(odd)}")


class _WholeCopy(ParallelStyle):
    """A module that computes on whole tensors, the same on every rank."""

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        prepare: Any = _replicate_inputs  # its result replaces the module's inputs, though torch's annotation says None
        return distribute_module(module, device_mesh, input_fn=prepare, output_fn=_to_local)


def _replicate_inputs(_module: torch.nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    return tuple(_replicate(value, mesh) if isinstance(value, torch.Tensor) else value for value in inputs)


def _replicate(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        return tensor.redistribute(placements=[Replicate()])
    return DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)


def _to_local(_module: torch.nn.Module, output: Any, _mesh: DeviceMesh) -> Any:
    return output.to_local() if isinstance(output, DTensor) else output

"""How layers are divided over tensor-parallel ranks (Megatron-LM, arXiv:1909.08053), by the names of their modules.

The first projection of attention and of the MLP gives every rank some heads or columns, the second one sums over ranks.
Embeddings and logits are divided by vocabulary: the model returns logits as a DTensor [B,S,V] sharded on V. Whatever
no rule names (norms, a score head) becomes a DTensor too, with a whole copy on each rank, so that all parameters live
on one mesh: optimizers and gradient clipping refuse a mixture.

With sequence parallelism (arXiv:2205.05198) a rank keeps, between these blocks, its own tokens only: embeddings leave
as a DTensor [B,S,H] sharded on S, norms and residual sums work on the shards, a block gathers the tokens once for all
its first projections, and the sum over ranks leaves every rank its part. Hidden states stay DTensors all the way, so
that the model sees S tokens and makes masks for S.
"""

from __future__ import annotations

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

Plan = Mapping[str, ParallelStyle]


def parallelize_tensors(
    model: torch.nn.Module, mesh: DeviceMesh, custom_plan: Plan | None, sequence_parallel: bool = False
) -> None:
    """Divide the model in place. custom_plan: styles by patterns of module names, instead of the built-in rules, which
    are those of sequence parallelism if that is wanted.

    Raises ValueError for a model that the rules do not fit and for sizes that mesh.size() does not divide, TypeError
    for a custom plan of another kind.
    """
    plan = _built_in_plan(model, mesh.size(), sequence_parallel) if custom_plan is None else _checked(custom_plan)
    parallelize_module(model, mesh, plan)
    for module in list(model.modules()):
        own = list(module.parameters(recurse=False))
        if own and not isinstance(own[0], DTensor):
            _WholeCopy()._apply(module, mesh)  # noqa: SLF001  # parallelize_module takes names; here is the module


def _checked(plan: object) -> dict[str, ParallelStyle]:
    if not isinstance(plan, Mapping) or not all(isinstance(style, ParallelStyle) for style in plan.values()):
        raise TypeError("dtensor_cfg.custom_parallel_plan must map patterns of module names to ParallelStyle objects")
    return dict(plan)


def _built_in_plan(model: torch.nn.Module, ranks: int, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """The rules that have a module: torch warns of others. Some models have no logits or no norms of heads."""
    names = {name for name, _ in model.named_modules()}
    _check_names(model, names)
    _check_sizes(model.config, ranks)
    plan = _decoder_plan() | (_divided_by_tokens(names) if sequence_parallel else {})
    return {pattern: style for pattern, style in plan.items() if pattern.replace("*", "0") in names}


def _decoder_plan() -> dict[str, ParallelStyle]:
    """For Llama, Mistral, Qwen2, Qwen3 and models whose modules have the same names."""
    layer = "model.layers.*"
    return {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        **{f"{layer}.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        # Norms of single heads (Qwen3) see this rank's heads only: [B,S,heads,D] sharded on 2. Their weight's gradient
        # is then a sum over ranks.
        f"{layer}.self_attn.q_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
        f"{layer}.self_attn.k_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
        f"{layer}.self_attn.o_proj": RowwiseParallel(),
        f"{layer}.mlp.gate_proj": ColwiseParallel(),
        f"{layer}.mlp.up_proj": ColwiseParallel(),
        f"{layer}.mlp.down_proj": RowwiseParallel(),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }


def _divided_by_tokens(names: set[str]) -> dict[str, ParallelStyle]:
    """What sequence parallelism changes in the plan."""
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
    """An embedding that leaves every rank its tokens."""

    def __init__(self) -> None:
        super().__init__(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False)

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        module.register_forward_pre_hook(partial(_check_tokens, device_mesh.size()))
        return super()._apply(module, device_mesh)


def _check_tokens(ranks: int, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    tokens = inputs[0].shape[1]
    if tokens % ranks:
        raise ValueError(
            f"input_ids: dtensor_cfg.sequence_parallel cannot divide {tokens} tokens a row by "
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
            f"there is no tensor-parallel plan for {type(model).__name__}: its layers have no {', '.join(missing)}. "
            "Give dtensor_cfg.custom_parallel_plan, or set tensor_parallel_size=1"
        )


def _check_sizes(config: Any, ranks: int) -> None:
    names = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    odd = [f"{name}={size}" for name in names if (size := getattr(config, name, 0)) % ranks]
    if odd:
        raise ValueError(f"dtensor_cfg.tensor_parallel_size={ranks} does not divide the model's {', '.join(odd)}")


class _WholeCopy(ParallelStyle):
    """A module that computes on whole tensors, the same on every rank."""

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        prepare: Any = _to_copies  # it returns what the module gets instead, though torch's annotation says None
        return distribute_module(module, device_mesh, input_fn=prepare, output_fn=_to_local)


def _to_copies(_module: torch.nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    return tuple(_to_copy(value, mesh) if isinstance(value, torch.Tensor) else value for value in inputs)


def _to_copy(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        return tensor.redistribute(placements=[Replicate()])
    return DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)


def _to_local(_module: torch.nn.Module, output: Any, _mesh: DeviceMesh) -> Any:
    return output.to_local() if isinstance(output, DTensor) else output

"""Tensor parallelism: layers divided over ranks (Megatron-LM, arXiv:1909.08053), by the plan that comes with the model.

A plan of transformers has rules by the names of modules; here they become torch's styles. The first projection of
attention and of the MLP gives every rank some heads or columns; the second sums over ranks. Whatever the plan says,
embeddings and logits are sharded by vocabulary: the model returns logits as a DTensor [B,S,V] sharded on V. Modules
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
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
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
    one; replaces the model's own plan, and the styles of sequence parallelism.

    Raises ValueError for a model without a plan, with a rule that is not supported or with a layer whose tokens cannot
    be divided, for sizes that mesh.size() does not divide and for a path where nothing is, TypeError for a custom plan
    of another kind.
    """
    plan = _own_plan(model, mesh.size(), sequence_parallel) if custom_plan is None else _check_plan(custom_plan)
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


_COLUMNS: dict[str, Callable[..., ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "colwise_gather_output": partial(ColwiseParallel, output_layouts=Replicate()),
}
_ROWS: dict[str, Callable[..., ParallelStyle]] = {
    "rowwise": RowwiseParallel,
    "rowwise_split_input": partial(RowwiseParallel, input_layouts=Replicate()),
}
_PARTS: dict[str, Callable[..., ParallelStyle]] = {
    # A norm of single heads sees this rank's heads, as if they were further rows of a batch. The gradient of its
    # weight is a sum over ranks.
    "replicated_with_grad_allreduce": partial(SequenceParallel, sequence_dim=0, use_local_output=True)
}
_STYLES = _COLUMNS | _ROWS | _PARTS
"""Makers of torch's styles, by the names of transformers."""


def _own_plan(model: Any, ranks: int, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """The model's rules as torch's styles, by patterns of names that the model has."""
    modules = {pattern_of(name): module for name, module in model.named_modules()}
    vocabulary = _vocabulary_plan(model, modules, sequence_parallel)
    held = modules.keys() | {pattern_of(name) for name, _ in model.named_parameters()}
    plan = getattr(model, "tp_plan", None) or {}
    rules = {name: rule for name, rule in plan.items() if name in held and name not in vocabulary}
    _check_rules(model, rules, modules)
    if sequence_parallel:
        _check_layers(model, rules, modules)
    _check_sizes(model.config.get_text_config(), ranks)
    tokens = _token_plan(rules, modules, vocabulary) if sequence_parallel else {}
    return {name: _STYLES[rule]() for name, rule in rules.items()} | vocabulary | tokens


def pattern_of(name: str) -> str:
    """The name for all layers."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _vocabulary_plan(
    model: Any, modules: Mapping[str, torch.nn.Module], sequence_parallel: bool
) -> dict[str, ParallelStyle]:
    """The styles of the embedding and of the layer that computes logits, which a reward model lacks."""
    embedding = _TokenEmbedding() if sequence_parallel else RowwiseParallel(input_layouts=Replicate())
    tokens = Shard(1) if sequence_parallel else Replicate()
    logits = ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False)
    styles = [(model.get_input_embeddings(), embedding), (model.get_output_embeddings(), logits)]
    return {name: style for end, style in styles for name, module in modules.items() if module is end}


def _token_plan(
    rules: Mapping[str, str], modules: Mapping[str, torch.nn.Module], vocabulary: Collection[str]
) -> dict[str, ParallelStyle]:
    """The styles that sequence parallelism adds or changes, outside the vocabulary."""
    blocks = _blocks(rules)
    rows = {name: rule for name, rule in rules.items() if rule in _ROWS}
    norms = [name for name in modules if "norm" in name and name not in vocabulary and not _inside(name, blocks)]
    return {
        **{block: _GatheredTokens() for block in blocks},
        **{name: _ROWS[rule](output_layouts=Shard(1), use_local_output=False) for name, rule in rows.items()},
        **{name: SequenceParallel() for name in norms},
    }


def _blocks(rules: Mapping[str, str], kinds: Collection[str] = tuple(_COLUMNS)) -> set[str]:
    """The modules whose first layers these are, such as attention and the MLP."""
    return {name.rpartition(".")[0] for name, rule in rules.items() if rule in kinds}


def _inside(name: str, blocks: set[str]) -> bool:
    return any(name == block or name.startswith(f"{block}.") for block in blocks)


class _GatheredTokens(ParallelStyle):
    """A block that gets the tokens of all ranks."""

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        module.register_forward_pre_hook(_gather_tokens, with_kwargs=True)
        return module


def _gather_tokens(
    _module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(_whole(value) for value in inputs), {name: _whole(value) for name, value in named.items()}


def _whole(value: Any) -> Any:
    return value.redistribute(placements=[Replicate()]) if isinstance(value, DTensor) else value


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


def _check_rules(model: Any, rules: Mapping[str, str], modules: Mapping[str, torch.nn.Module]) -> None:
    unknown = [f"{rule} ({name})" for name, rule in rules.items() if rule not in _STYLES or name not in modules]
    if unknown:
        reason = f"its rules {', '.join(unknown)} are not supported"
    elif not _blocks(rules):
        reason = f"the tp_plan of {model.config.model_type} in transformers divides no layer"
    elif lost := _without_rules(rules, modules):
        reason = f"its plan has no rule for {', '.join(lost)}, which must compute with a rank's part of a layer"
    elif mixing := _with_own_weights(rules, modules):
        reason = f"its plan has no rule for {', '.join(mixing)}, which computes with weights and modules of its own"
    else:
        return
    raise ValueError(
        f"no tensor-parallel plan for {type(model).__name__}: {reason}. Set dtensor_cfg.custom_parallel_plan, "
        "model_backend=automodel or tensor_parallel_size=1"
    )


def _check_layers(model: Any, rules: Mapping[str, str], modules: Mapping[str, torch.nn.Module]) -> None:
    """Refuse layers that compute, outside of their blocks and norms, with tensors that do not know of shards."""
    blocks = _blocks(rules)
    layers = {block.rpartition(".")[0] for block in blocks}
    outside = [name for name in modules if _inside(name, layers) and not _inside(name, blocks) and "norm" not in name]
    holders = {pattern_of(name).rpartition(".")[0] for name in model.state_dict()}
    if others := [name for name in outside if name in holders]:
        raise ValueError(
            f"dtensor_cfg.sequence_parallel cannot divide the tokens of {type(model).__name__}: its layers compute "
            f"with {', '.join(others)} outside of attention, MLP and norms. Set sequence_parallel=false"
        )


def _with_own_weights(rules: Mapping[str, str], modules: Mapping[str, torch.nn.Module]) -> list[str]:
    """Modules that combine weights of their own with what their children return. A child returns plain tensors, which
    torch does not combine with DTensors.
    """
    parents = {name.rpartition(".")[0] for name in modules if "." in name}
    return [name for name in _holders(modules) if name in parents and name not in rules]


def _holders(modules: Mapping[str, torch.nn.Module]) -> list[str]:
    return [name for name, module in modules.items() if [*module.parameters(recurse=False)]]


def _without_rules(rules: Mapping[str, str], modules: Mapping[str, torch.nn.Module]) -> list[str]:
    """Modules with weights in divided blocks that no rule names. Each rank would get another gradient for them."""
    blocks = _blocks(rules, ("colwise",))
    return [name for name in _holders(modules) if _inside(name, blocks) and name not in rules]


def _check_sizes(config: Any, ranks: int) -> None:
    names = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    sizes = {name: size for name in names if isinstance(size := getattr(config, name, None), int)}
    odd = [f"{name}={size}" for name, size in sizes.items() if size % ranks]
    if odd:
        raise ValueError(f"dtensor_cfg.tensor_parallel_size={ranks} does not divide the model's {', '.join(odd)}")


class _WholeCopy(ParallelStyle):
    """A module that computes on whole tensors, the same on every rank."""

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        prepare: Any = _replicate_inputs  # its result replaces the module's inputs, though torch's annotation says None
        return distribute_module(module, device_mesh, input_fn=prepare, output_fn=_to_local)


def _replicate_inputs(_module: torch.nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    return tuple(_replicate(value, mesh) for value in inputs)


def _replicate(value: Any, mesh: DeviceMesh) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
        return DTensor.from_local(value, mesh, [Replicate()], run_check=False)
    return _whole(value)


def _to_local(_module: torch.nn.Module, output: Any, _mesh: DeviceMesh) -> Any:
    return output.to_local() if isinstance(output, DTensor) else output

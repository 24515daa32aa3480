"""The policy's configuration as the user writes it, and the values that set-up derives from it.

PolicyConfig is a plain nested dictionary, usually loaded from YAML. Its types name every key that is read, and
`check_types` holds a configuration to them; other keys are allowed and ignored. `required` looks up keys that have no
default and names the whole path if one is missing.

Set-up fills the NamedTuples once. Workers unpack them by position, so the order of their fields is part of the
interface.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Union, get_args, get_origin, is_typeddict

import torch
from typing_extensions import Required, get_type_hints  # torch's; in typing from Python 3.11 on

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def required(config: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path such as "dtensor_cfg.cpu_offload". KeyError naming the path and the missing
    part.
    """
    found: Any = config
    for depth, key in enumerate(path.split("."), start=1):
        if found is None or key not in found:
            missing = ".".join(path.split(".")[:depth])
            raise KeyError(f"the policy config must set {path}" + (f": it has no {missing}" if missing != path else ""))
        found = found[key]
    return found


def check_types(config: Mapping[str, Any], kind: Any = None, block: str = "") -> None:
    """Raise ValueError naming the first key whose value has another type than in kind (None: PolicyConfig), or is a
    number that is not positive but must be; absent keys are allowed.
    """
    for key, wanted in get_type_hints(kind or PolicyConfig).items():
        if key in config:
            _check_type(config[key], wanted, block + key)
            if key.endswith(_POSITIVE) and config[key] is not None and not config[key] > 0:
                raise ValueError(f"{block}{key} must be positive, not {config[key]}")


def _check_type(value: Any, wanted: Any, path: str) -> None:
    kinds = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
    rules = [_rule(kind) for kind in kinds]
    kind = next((kind for kind, (fits, _) in zip(kinds, rules, strict=True) if fits(value)), None)
    if kind is None:
        raise ValueError(f"{path} must be {' or '.join(name for _, name in rules)}, not {value!r}")
    if is_typeddict(kind):
        check_types(value, kind, f"{path}.")
    if get_origin(kind) in (list, tuple):
        inner, *_ = get_args(kind)
        for place, item in enumerate(value):
            _check_type(item, inner, f"{path}[{place}]")


def _rule(kind: Any) -> tuple[Callable[[Any], bool], str]:
    """Whether a value is of a type, and what to call the type."""
    if get_origin(kind) is Literal:
        return (lambda value: value in get_args(kind)), f"one of {', '.join(get_args(kind))}"
    types, name = _KINDS[dict if is_typeddict(kind) else get_origin(kind) or kind]
    return (lambda value: isinstance(value, types) and (kind is bool or not isinstance(value, bool))), name


_SIZES = ("_size", "_tokens", "_divisible_by", "_round", "dim")
_POSITIVE = (*_SIZES, "_timeout_s", "max_grad_norm", "temperature", "alpha")
"""How the keys of positive numbers end. With a negative max_grad_norm training would go the other way."""

_KINDS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    str: ((str, os.PathLike), "a string"),
    list: ((list, tuple), "a list"),
    tuple: ((list, tuple), "a list"),
    dict: (Mapping, "a mapping"),
    Mapping: (Mapping, "a mapping"),
    NoneType: (NoneType, "null"),
}
"""By a type of PolicyConfig: what counts as it, and what to call it."""


def is_enabled(config: Mapping[str, Any], block: str) -> bool:
    """Whether an optional block of a configuration is present and enabled."""
    return bool((config.get(block) or {}).get("enabled", False))


# --- written by the user ---


class TokenizerConfig(TypedDict, total=False):
    """name: name or path of a pretrained tokenizer.
    chat_template: None passes messages through; "default" or an absent key keeps the tokenizer's own; a path that ends
    in ".jinja" is read; any other string is the template itself.
    chat_template_kwargs: arguments for every apply_chat_template.
    use_processor: load a multimodal processor instead of a tokenizer.
    """

    name: Required[str]
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    use_processor: bool


class ColocationConfig(TypedDict):
    """enabled: generation runs on the trainer's own devices."""

    enabled: bool


class GenerationConfig(TypedDict):
    """How rollouts are sampled. Log-probabilities are computed with the same temperature, top_k and top_p."""

    colocated: ColocationConfig
    temperature: float
    top_p: float | None
    top_k: int | None


class RewardModelConfig(TypedDict, total=False):
    """enabled: the policy is a reward model, of the kind reward_model_type."""

    enabled: Required[bool]
    reward_model_type: Literal["bradley_terry"]


class OptimizerConfig(TypedDict, total=False):
    """name: dotted path of a class.
    kwargs: its arguments. Strings that begin with "torch." name attributes of torch.
    """

    name: Required[str]
    kwargs: dict[str, Any] | None


class SchedulerConfig(TypedDict, total=False):
    """A learning-rate schedule, named as an optimizer is, or, among several of them, the steps at which they change."""

    name: str
    kwargs: dict[str, Any] | None
    milestones: list[int]


class DynamicBatchingConfig(TypedDict, total=False):
    """Microbatches of rows of similar length, cut to a common length that is a multiple of sequence_length_round.

    train_mb_tokens, logprob_mb_tokens: the most tokens of a microbatch, padding included.
    """

    enabled: Required[bool]
    train_mb_tokens: int
    logprob_mb_tokens: int
    sequence_length_round: int


class SequencePackingConfig(TypedDict, total=False):
    """Microbatches whose rows are concatenated into one row; excludes dynamic batching.

    attention: how models of transformers keep the sequences of a row apart. "sdpa" (default on "cpu") works on every
    device and in every precision, with a mask of all pairs of a row's tokens. "flash" (default on "cuda") is
    FlashAttention 2: it needs the package flash-attn or kernels, and 16 bits. "flex" is torch's FlexAttention, compiled
    for "cuda".
    algorithm: see dataplane_client.packing.get_packer.
    train_mb_tokens: the most tokens of a microbatch in training, and the least width of a packed row in any stage.
    logprob_mb_tokens: the most tokens of a microbatch when only log-probabilities are computed.
    """

    enabled: Required[bool]
    attention: Literal["sdpa", "flash", "flex"]
    algorithm: str
    train_mb_tokens: int
    logprob_mb_tokens: int


class AutomodelKwargs(TypedDict, total=False):
    """Arguments of NeMo Automodel's from_pretrained; others than force_hf=True need model_backend=automodel.

    backend: a `_target_` and its arguments.
    force_hf: use the Hugging Face implementation of the model.
    """

    backend: dict[str, Any] | None
    force_hf: bool | None
    use_liger_kernel: bool | None


class DTensorConfig(TypedDict, total=False):
    """How the model is laid out over the ranks.

    Sizes are numbers of ranks and default to 1; the rest of the world is data-parallel. clear_cache_every_n_steps
    counts microbatches.

    device: "cuda" (default) or "cpu"; never changed silently. model_backend: the package that loads and shards the
    model, "transformers" or "automodel"; absent: "automodel" if it is installed. custom_parallel_plan: torch's parallel
    styles by patterns of module names, or the dotted path of such a mapping or of a function that returns one.
    sequence_parallel: between attention and MLP each tensor-parallel rank computes its own tokens only.
    tensor_parallel_size must divide the tokens of a row. context_parallel_size: ranks that share a sequence, each with
    an early and a late stretch of it. Twice this number must divide the tokens of a row. context_parallel_attention:
    how a rank's tokens attend to those of other ranks. "torch" (default on "cuda") is torch's ring attention, which
    passes keys and values around. With "gathered" (default on "cpu") every rank gathers them. Packed sequences need an
    explicit "gathered".
    lora_cfg: adapters are trained instead of whole weights. The keys are `enabled` and the fields of
    adapters.config.PeftConfig. collective_timeout_s: how long a rank waits for the others, 1800 by default. It must be
    longer than rank 0 reads the model's files or joins those of a checkpoint and, without a driver, than a claim may
    wait for rows. pin_host_memory: weights and optimizer state that are on the host for a while (cpu_offload,
    offload_after_refit) are in pinned memory, true by default. Copies then take the bus's speed and block nothing; each
    tensor takes up to twice its size. empty_cache_after_training: every train call ends with torch.cuda.empty_cache(),
    for another process on the same GPU; false by default, because the next step allocates anew.
    """

    cpu_offload: Required[bool]
    sequence_parallel: Required[bool]
    activation_checkpointing: Required[bool]
    device: Literal["cuda", "cpu"]
    model_backend: Literal["transformers", "automodel"]
    context_parallel_attention: Literal["torch", "gathered"]

    tensor_parallel_size: int
    context_parallel_size: int
    expert_parallel_size: int
    dp_replicate_size: int
    custom_parallel_plan: Mapping[str, Any] | str | None
    defer_fsdp_grad_sync: bool
    moe_parallelizer: dict[str, Any] | None
    lora_cfg: dict[str, Any] | None
    automodel_kwargs: AutomodelKwargs | None
    clear_cache_every_n_steps: int | None
    collective_timeout_s: float
    pin_host_memory: bool
    empty_cache_after_training: bool


class PolicyConfig(TypedDict, total=False):
    """Batch sizes are in samples. train_global_batch_size counts all ranks; the other batch sizes are per rank.

    model_name: name or path of pretrained weights.
    precision: of the forward pass; weights are kept in float32. "float16" allows no training.
    max_grad_norm: gradients are clipped to this L2 norm, which is positive; None: no clipping.
    batch_size: of scoring.
    logprob_chunk_size: positions whose logits are normalised at once in inference; None: 1024, as in training.
    scheduler: one learning-rate schedule, or a list of them with milestones (SchedulerConfig); None: a constant rate.
    optimizer: may be absent if nothing is trained.
    seed: of torch's random numbers, such as dropout and new adapters. Each data- or context-parallel rank adds its
    number, because it has other tokens; tensor-parallel ranks share theirs. None or absent: torch's own seed.
    dequantize_base_checkpoint: the weights are quantized. Refused with transformers; NeMo Automodel finds out itself.
    """

    model_name: Required[str]
    tokenizer: Required[TokenizerConfig]
    precision: Required[Literal["float32", "bfloat16", "float16"]]
    max_grad_norm: Required[float | None]
    train_global_batch_size: Required[int]
    train_micro_batch_size: Required[int]
    logprob_batch_size: Required[int]
    make_sequence_length_divisible_by: Required[int]
    dynamic_batching: Required[DynamicBatchingConfig]
    sequence_packing: Required[SequencePackingConfig]
    dtensor_cfg: Required[DTensorConfig]
    seed: int | None
    batch_size: int
    logprob_chunk_size: int | None
    offload_optimizer_for_logprob: bool
    hf_config_overrides: dict[str, Any] | None
    generation: GenerationConfig | None
    reward_model_cfg: RewardModelConfig | None
    optimizer: OptimizerConfig | None
    scheduler: dict[str, Any] | list[dict[str, Any]] | None
    dequantize_base_checkpoint: bool


# --- derived by set-up ---


@dataclass
class TrainingSamplingParams:
    """How the rollouts' tokens were sampled; the trainer's log-probabilities use the same distribution.

    top_k: only the k largest logits could be sampled; None or not positive: all.
    top_p: only the most likely tokens that together reach this probability could be sampled; 1 or None: all.
    temperature: logits are divided by it first.
    """

    top_k: int | None = None
    top_p: float | None = 1.0
    temperature: float = 1.0


class DistributedContext(NamedTuple):
    """The meshes of ranks and the sizes of their dimensions.

    moe_mesh: of the ranks that divide experts; None without expert parallelism. moe_config: NeMo Automodel's, or None.
    fsdp2_config: how weights are sharded.
    """

    device_mesh: DeviceMesh
    moe_mesh: DeviceMesh | None
    fsdp2_config: Any
    moe_config: Any
    dp_size: int
    tp_size: int
    cp_size: int


class RuntimeConfig(NamedTuple):
    """The result of validating a PolicyConfig.

    attn_impl: None leaves the choice to the model.
    max_grad_norm: None disables clipping.
    is_generation_colocated, sampling_params: None if the policy does not generate; the latter of reward models, too.
    """

    model_class: Any
    model_config: Any
    hf_config_overrides: dict[str, Any]
    allow_flash_attn_args: bool
    attn_impl: str | None
    dtype: torch.dtype
    enable_seq_packing: bool
    max_grad_norm: float | None
    cpu_offload: bool
    offload_optimizer_for_logprob: bool
    is_generation_colocated: bool | None
    sampling_params: TrainingSamplingParams | None
    is_reward_model: bool


class ModelAndOptimizerState(NamedTuple):
    """The model and its optimizer.

    optimizer, scheduler: None if nothing is trained.
    peft_config: None without adapters.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    is_hf_model: bool
    is_moe_model: bool
    is_reward_model: bool
    model_class: Any
    model_config: Any
    peft_config: Any
    autocast_enabled: bool

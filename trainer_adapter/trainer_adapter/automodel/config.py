"""The policy's configuration as the user writes it, and what a worker makes of it.

PolicyConfig is a plain nested dictionary, usually loaded from YAML. Its types here name every key that is read; keys
that nobody reads are allowed. A key that has no default is looked up with `required`, which names the whole path when
it is missing. The NamedTuples are what set-up settles once and everything later relies on; workers unpack them by
position, so the order of their fields is part of the interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def required(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path such as "dtensor_cfg.cpu_offload"; KeyError naming the path and its missing part."""
    found: Any = config
    for depth, key in enumerate(path.split("."), start=1):
        if found is None or key not in found:
            missing = ".".join(path.split(".")[:depth])
            raise KeyError(f"the policy config must set {path}" + (f": it has no {missing}" if missing != path else ""))
        found = found[key]
    return found


# --- as the user writes it ---


class _RequiredTokenizerConfig(TypedDict):
    name: str


class TokenizerConfig(_RequiredTokenizerConfig, total=False):
    """name: name or path of a pretrained tokenizer.
    chat_template: None passes messages through, "default" and absence keep the tokenizer's own, a path that ends in
        ".jinja" is read, anything else is the template itself.
    chat_template_kwargs: arguments given to every apply_chat_template.
    use_processor: load a multimodal processor instead of a tokenizer.
    """

    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    use_processor: bool


class ColocationConfig(TypedDict):
    """enabled: generation runs on the trainer's own devices."""

    enabled: bool


class GenerationConfig(TypedDict):
    """How rollouts are sampled; log-probabilities are computed under the same temperature, top_k and top_p."""

    colocated: ColocationConfig
    temperature: float
    top_p: float
    top_k: int | None


class _RequiredRewardModelConfig(TypedDict):
    enabled: bool


class RewardModelConfig(_RequiredRewardModelConfig, total=False):
    """enabled: the policy is a reward model, of kind reward_model_type."""

    reward_model_type: Literal["bradley_terry"]


class OptimizerConfig(TypedDict):
    """name: dotted path of an optimizer class; kwargs: its arguments, where strings that begin with "torch." stand for
    attributes of torch.
    """

    name: str
    kwargs: dict[str, Any]


class _RequiredDynamicBatchingConfig(TypedDict):
    enabled: bool


class DynamicBatchingConfig(_RequiredDynamicBatchingConfig, total=False):
    """Microbatches of rows of similar length, cut to a common length that is a multiple of sequence_length_round.

    train_mb_tokens, logprob_mb_tokens: tokens of a microbatch, padding included, at most.
    """

    train_mb_tokens: int
    logprob_mb_tokens: int
    sequence_length_round: int


class _RequiredSequencePackingConfig(TypedDict):
    enabled: bool


class SequencePackingConfig(_RequiredSequencePackingConfig, total=False):
    """Microbatches laid end to end in one row; not together with dynamic batching.

    algorithm: see dataplane_client.packing.get_packer.
    train_mb_tokens: tokens of a microbatch at most, and the shortest row that is made of one, whatever the stage.
    logprob_mb_tokens: tokens of a microbatch at most where only log-probabilities are computed.
    """

    algorithm: str
    train_mb_tokens: int
    logprob_mb_tokens: int


class AutomodelKwargs(TypedDict, total=False):
    """Arguments of from_pretrained. backend: a `_target_` and its arguments; force_hf: use the Hugging Face model."""

    backend: dict[str, Any]
    force_hf: bool | None
    use_liger_kernel: bool


class _RequiredDTensorConfig(TypedDict):
    cpu_offload: bool
    sequence_parallel: bool
    activation_checkpointing: bool


class DTensorConfig(_RequiredDTensorConfig, total=False):
    """How the model is laid out over the ranks. Sizes are numbers of ranks and default to 1; what is left of the world
    is data-parallel. clear_cache_every_n_steps counts microbatches.

    device: "cuda" (default) or "cpu", never changed in silence. model_backend: what loads and shards the model,
    "transformers" (default) or "automodel". custom_parallel_plan: torch's parallel styles, by names of modules.

    sequence_parallel: between attention and MLP each tensor-parallel rank computes on its own tokens only; the tokens
    of a row must divide by tensor_parallel_size. context_parallel_size: ranks that share a sequence, each with an early
    and a late stretch of it; the tokens of a row must divide by twice as many. context_parallel_attention: how a rank's
    tokens see those of the others. "torch" (default on "cuda", not to be had on "cpu") is torch's context_parallel,
    which passes keys and values around; with "gathered" (default on "cpu") every rank gathers them. Packed sequences
    need "gathered", and it must be asked for.

    lora_cfg: adapters instead of whole weights are trained; the keys are the fields of _lora_config.PeftConfig, and
    `enabled`.
    """

    device: Literal["cuda", "cpu"]
    model_backend: Literal["transformers", "automodel"]
    context_parallel_attention: Literal["torch", "gathered"]

    tensor_parallel_size: int
    context_parallel_size: int
    expert_parallel_size: int
    dp_replicate_size: int
    custom_parallel_plan: Mapping[str, Any] | None
    defer_fsdp_grad_sync: bool
    moe_parallelizer: dict[str, Any]
    lora_cfg: dict[str, Any]
    automodel_kwargs: AutomodelKwargs
    clear_cache_every_n_steps: int | None


class _RequiredPolicyConfig(TypedDict):
    model_name: str
    tokenizer: TokenizerConfig
    precision: Literal["float32", "bfloat16", "float16"]
    max_grad_norm: float | None
    train_global_batch_size: int
    train_micro_batch_size: int
    logprob_batch_size: int
    make_sequence_length_divisible_by: int
    dynamic_batching: DynamicBatchingConfig
    sequence_packing: SequencePackingConfig
    dtensor_cfg: DTensorConfig


class PolicyConfig(_RequiredPolicyConfig, total=False):
    """Batch sizes are in samples; train_global_batch_size spans all ranks, the others are per rank.

    model_name: name or path of pretrained weights.
    precision: of the forward pass; weights are kept in float32.
    max_grad_norm: gradients are clipped to this L2 norm; None: not at all.
    batch_size: of scoring.
    logprob_chunk_size: positions whose logits are normalised at once; None: all.
    scheduler: one learning-rate schedule, or several and their milestones; absent: a constant rate.
    optimizer: may be absent where nothing is trained.
    """

    batch_size: int
    logprob_chunk_size: int | None
    offload_optimizer_for_logprob: bool
    hf_config_overrides: dict[str, Any] | None
    generation: GenerationConfig | None
    reward_model_cfg: RewardModelConfig
    optimizer: OptimizerConfig | None
    scheduler: dict[str, Any] | list[dict[str, Any]]
    dequantize_base_checkpoint: bool


# --- as set-up settles it ---


@dataclass
class TrainingSamplingParams:
    """How the rollouts' tokens were drawn, which their log-probabilities under the trainer must repeat.

    top_k: only the k largest logits could be drawn; None or not positive: all.
    top_p: only the most likely tokens that together reach this probability could be drawn; 1 or None: all.
    temperature: logits are divided by it first.
    """

    top_k: int | None = None
    top_p: float | None = 1.0
    temperature: float = 1.0


class DistributedContext(NamedTuple):
    """The meshes of ranks and the sizes of their dimensions. moe_mesh is None without expert parallelism; fsdp2_config
    says how weights are sharded; moe_config is None without expert parallelism.
    """

    device_mesh: DeviceMesh
    moe_mesh: DeviceMesh | None
    fsdp2_config: Any
    moe_config: Any
    dp_size: int
    tp_size: int
    cp_size: int


class RuntimeConfig(NamedTuple):
    """What validation made of a PolicyConfig. attn_impl None leaves the choice to the model; max_grad_norm None means
    no clipping; is_generation_colocated and sampling_params are None where the policy does not generate.
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
    """The model and what trains it; optimizer and scheduler are None where nothing is trained, peft_config without
    adapters.
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

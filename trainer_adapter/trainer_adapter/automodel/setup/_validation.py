"""What a PolicyConfig must satisfy before anything is started, and what follows from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from trainer_adapter.automodel.choices import context_parallel_attention, device_type
from trainer_adapter.automodel.config import PolicyConfig, RuntimeConfig, TrainingSamplingParams, required
from trainer_adapter.automodel.models.backend import require_model_backend, resolve_model_class, reward_model_class
from trainer_adapter.automodel.packages import require_transformers
from trainer_adapter.automodel.rank import report

STRING_TO_DTYPE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Names of the precisions that a forward pass can have."""


def validate_and_prepare_config(config: PolicyConfig, processor: Any | None, rank: int) -> RuntimeConfig:
    """Check the configuration and settle what follows from it. processor: that of a vision-language model, or None.

    Sets NCCL_CUMEM_ENABLE=1 in the environment unless generation is colocated, and torch's inductor not to share its
    autotuning between ranks. Reads the model's configuration with float32, in which weights are kept; code that comes
    with it is run: name only models that you trust.

    Raises ValueError, AssertionError or NotImplementedError for what is not supported, KeyError naming a missing key,
    ImportError naming the extra to install.
    """
    colocated, sampling = _generation(config)
    if not colocated:
        os.environ["NCCL_CUMEM_ENABLE"] = "1"
    _keep_autotuning_apart()
    if config["precision"] not in STRING_TO_DTYPE:
        raise ValueError(f"Unknown precision: {config['precision']} (there are {', '.join(STRING_TO_DTYPE)})")
    cpu_offload = bool(required(config, "dtensor_cfg.cpu_offload"))
    max_grad_norm = required(config, "max_grad_norm")
    packing = bool(required(config, "sequence_packing.enabled"))
    _check_packing(config, packing, processor is not None, rank)
    overrides = _checked_overrides(config.get("hf_config_overrides"))
    require_model_backend(config)
    context_parallel_attention(config)
    attn_impl = _attention(config, packing)
    model_config = _read_model_config(config["model_name"], attn_impl if packing else None, overrides)
    reward = bool(dict(config.get("reward_model_cfg") or {}).get("enabled"))
    model_class = _model_class(config, model_config, packing, reward)
    _check_parallelism(config, packing)
    return RuntimeConfig(
        model_class=model_class,
        model_config=model_config,
        hf_config_overrides=overrides,
        allow_flash_attn_args=not _is_nemotron_nas(model_config),
        attn_impl=attn_impl,
        dtype=STRING_TO_DTYPE[config["precision"]],
        enable_seq_packing=packing,
        max_grad_norm=max_grad_norm,
        cpu_offload=cpu_offload,
        offload_optimizer_for_logprob=config.get("offload_optimizer_for_logprob", False),
        is_generation_colocated=colocated,
        sampling_params=sampling,
        is_reward_model=reward,
    )


def _generation(config: PolicyConfig) -> tuple[bool | None, TrainingSamplingParams | None]:
    """Whether generation is colocated, and how it samples; both None where the policy does not generate."""
    if config.get("generation") is None:
        return None, None
    top_k, top_p, temperature = (required(config, f"generation.{key}") for key in ("top_k", "top_p", "temperature"))
    sampling = TrainingSamplingParams(top_k=top_k, top_p=top_p, temperature=temperature)
    return bool(required(config, "generation.colocated.enabled")), sampling


def _keep_autotuning_apart() -> None:
    """Ranks that share a cache of autotuned kernels on disk overwrite each other's entries."""
    import torch._inductor.config as inductor  # 0.3 s, and only ranks need it

    inductor.autotune_local_cache = False


def _check_packing(config: PolicyConfig, packing: bool, is_vlm: bool, rank: int) -> None:
    if not packing:
        return
    if is_vlm:
        raise ValueError("Sequence packing is not supported for VLM models: set sequence_packing.enabled=false")
    kernels = "FlashAttention2" if device_type(config) == "cuda" else "SDPA"
    report(f"[Rank {rank}] Sequence packing is enabled for model {required(config, 'model_name')}")
    report(f"[Rank {rank}] Using {kernels} for sequence packing")


def _checked_overrides(overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    checked = dict(overrides or {})
    for key in ("rope_scaling", "rope_parameters"):
        if (checked.get(key) or {}).get("rope_type") == "yarn":
            raise AssertionError(f"hf_config_overrides.{key}: YaRN is not supported")
    return checked


def _attention(config: PolicyConfig, packing: bool) -> str | None:
    """FlashAttention runs on GPUs only; on the CPU SDPA keeps packed sequences apart as well."""
    packed = "flash_attention_2" if device_type(config) == "cuda" else "sdpa"
    if required(config, "dtensor_cfg.context_parallel_size") > 1:
        return "sdpa"
    return packed if packing else None


def _read_model_config(name: str, attention: str | None, overrides: Mapping[str, Any]) -> Any:
    return require_transformers().AutoConfig.from_pretrained(
        name, dtype=torch.float32, trust_remote_code=True, attn_implementation=attention, **overrides
    )


def _is_nemotron_nas(model_config: Any) -> bool:
    """Whether the model's code takes no arguments of FlashAttention."""
    architecture = next(iter(model_config.architectures or []), None)
    return bool(architecture == "DeciLMForCausalLM" and model_config.model_type == "nemotron-nas")


def _model_class(config: PolicyConfig, model_config: Any, packing: bool, reward: bool) -> Any:
    """Also gives the configuration of a reward model its one label."""
    backend = require_model_backend(config)
    if not reward:
        return resolve_model_class(model_config.model_type, backend)
    if packing:
        raise NotImplementedError("Sequence packing is not supported for reward models")
    model_class = reward_model_class(required(config, "reward_model_cfg.reward_model_type"), backend)
    if model_config.num_labels != 1:
        report(f"model_config.num_labels is not 1 but {model_config.num_labels}; a reward model has 1, which is set")
        model_config.num_labels = 1
    return model_class


def _check_parallelism(config: PolicyConfig, packing: bool) -> None:
    asked_for = config["dtensor_cfg"].get("context_parallel_attention")
    if required(config, "dtensor_cfg.context_parallel_size") > 1 and packing and asked_for != "gathered":
        raise ValueError(
            "Context parallel is not supported for sequence packing, unless "
            "dtensor_cfg.context_parallel_attention=gathered is asked for: ask for it, or set one of them off"
        )
    tp_size = config["dtensor_cfg"].get("tensor_parallel_size", 1)
    if required(config, "dtensor_cfg.sequence_parallel") and tp_size == 1:
        report("WARNING: sequence_parallel=True, but tp_size=1 which has no effect")

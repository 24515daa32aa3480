"""Validation of a PolicyConfig before anything starts, and the values derived from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from trainer_adapter.automodel.choices import packed_attention
from trainer_adapter.automodel.config import (
    PolicyConfig,
    RuntimeConfig,
    TrainingSamplingParams,
    check_types,
    is_enabled,
    required,
)
from trainer_adapter.automodel.models.backend import auto_class, require_model_backend, resolve_model_class
from trainer_adapter.automodel.models.force_hf import architecture_of
from trainer_adapter.automodel.packages import require_transformers
from trainer_adapter.automodel.rank import report

STRING_TO_DTYPE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""The precisions of a forward pass by name."""


def validate_and_prepare_config(config: PolicyConfig, processor: Any | None, rank: int) -> RuntimeConfig:
    """Check the configuration and derive a RuntimeConfig. processor: of a vision-language model, or None.

    Sets NCCL_CUMEM_ENABLE=1 in the environment unless generation is colocated, and stops torch's inductor from sharing
    its autotuning between ranks. Reads the model's configuration with float32, the dtype of the weights. Code that
    comes with the model is run: name only models that you trust.

    Raises ValueError, AssertionError or NotImplementedError for unsupported settings, KeyError naming a missing key,
    ImportError naming the extra to install.
    """
    check_types(config)
    colocated, sampling = _read_generation(config)
    if not colocated:
        os.environ["NCCL_CUMEM_ENABLE"] = "1"
    _disable_shared_autotuning()
    cpu_offload = bool(required(config, "dtensor_cfg.cpu_offload"))
    packing = bool(required(config, "sequence_packing.enabled"))
    if packing and processor is not None:
        raise ValueError("Sequence packing is not supported for VLM models: set sequence_packing.enabled=false")
    if packing:
        report(f"[Rank {rank}] Sequence packing is enabled for model {required(config, 'model_name')}")
    overrides = _check_overrides(config.get("hf_config_overrides"))
    backend = require_model_backend(config)
    _check_backend_settings(config, backend)
    attn_impl = _choose_attention(config, packing, rank)
    model_config = _read_model_config(required(config, "model_name"), attn_impl if packing else None, overrides)
    reward = is_enabled(config, "reward_model_cfg")
    model_class = _choose_model_class(config, backend, model_config, packing, reward)
    _check_parallelism(config, packing)
    return RuntimeConfig(
        model_class=model_class,
        model_config=model_config,
        hf_config_overrides=overrides,
        # The code of nemotron-nas accepts no arguments of FlashAttention.
        allow_flash_attn_args=(architecture_of(model_config), model_config.model_type)
        != ("DeciLMForCausalLM", "nemotron-nas"),
        attn_impl=attn_impl,
        dtype=STRING_TO_DTYPE[required(config, "precision")],
        enable_seq_packing=packing,
        max_grad_norm=required(config, "max_grad_norm"),
        cpu_offload=cpu_offload,
        offload_optimizer_for_logprob=config.get("offload_optimizer_for_logprob", False),
        is_generation_colocated=colocated,
        sampling_params=None if reward else sampling,  # scores are not logits of tokens
        is_reward_model=reward,
    )


def _read_generation(config: PolicyConfig) -> tuple[bool | None, TrainingSamplingParams | None]:
    """Whether generation is colocated, and how it samples; both None if the policy does not generate."""
    if config.get("generation") is None:
        return None, None
    top_k, top_p, temperature = (required(config, f"generation.{key}") for key in ("top_k", "top_p", "temperature"))
    sampling = TrainingSamplingParams(top_k=top_k, top_p=top_p, temperature=temperature)
    return bool(required(config, "generation.colocated.enabled")), sampling


def _disable_shared_autotuning() -> None:
    """Ranks that share a cache of autotuned kernels on disk would overwrite each other's entries."""
    import torch._inductor.config as inductor  # imported late: it takes 0.3 s

    inductor.autotune_local_cache = False


def _check_overrides(overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    checked = dict(overrides or {})
    for key in ("rope_scaling", "rope_parameters"):
        rope = checked.get(key) or {}
        if rope.get("rope_type", rope.get("type")) == "yarn":  # transformers still reads the older name
            raise AssertionError(f"hf_config_overrides.{key}: YaRN is not supported")
    return checked


def _check_backend_settings(config: PolicyConfig, backend: str) -> None:
    """Refuse what the transformers backend would ignore."""
    if backend == "automodel":
        return
    layout = config["dtensor_cfg"]
    meant = {"force_hf": True, "use_liger_kernel": False}  # as this backend does anyway
    asked = [
        f"dtensor_cfg.automodel_kwargs.{key}"
        for key, value in (layout.get("automodel_kwargs") or {}).items()
        if value is not None and value is not meant.get(key)
    ]
    if layout.get("moe_parallelizer") and int(layout.get("expert_parallel_size", 1)) > 1:
        asked.append("dtensor_cfg.moe_parallelizer")
    if config.get("dequantize_base_checkpoint"):
        asked.append("dequantize_base_checkpoint")
    if asked:
        raise ValueError(
            f"{', '.join(asked)}: only NeMo Automodel can do this. Set dtensor_cfg.model_backend=automodel, or remove "
            "the setting to train the transformers implementation of the model"
        )


def _choose_attention(config: PolicyConfig, packing: bool, rank: int) -> str | None:
    if config["dtensor_cfg"].get("context_parallel_size", 1) > 1:
        if packing and config["sequence_packing"].get("attention", "sdpa") != "sdpa":
            raise ValueError("sequence_packing.attention must be sdpa with context_parallel_size > 1; remove it")
        return "sdpa"
    if not packing:
        return None
    attention = packed_attention(config)
    report(f"[Rank {rank}] Using {attention} for sequence packing")
    return attention


def _read_model_config(name: str, attention: str | None, overrides: Mapping[str, Any]) -> Any:
    found, unused = require_transformers().AutoConfig.from_pretrained(
        name,
        dtype=torch.float32,
        trust_remote_code=True,
        attn_implementation=attention,
        return_unused_kwargs=True,
        **overrides,
    )
    if unused:  # a misspelt name would train another model
        raise ValueError(f"hf_config_overrides: {type(found).__name__} has no {', '.join(sorted(unused))}")
    return found


def _choose_model_class(config: PolicyConfig, backend: str, model_config: Any, packing: bool, reward: bool) -> Any:
    """Also sets the number of labels of a reward model's configuration to 1."""
    if not reward:
        return resolve_model_class(model_config.model_type, backend)
    if packing:
        raise NotImplementedError("Sequence packing is not supported for reward models")
    required(config, "reward_model_cfg.reward_model_type")  # there is one kind
    if model_config.num_labels != 1:
        report(f"model_config.num_labels is {model_config.num_labels}; set to 1, as a reward model needs")
        model_config.num_labels = 1
    return auto_class("AutoModelForSequenceClassification", backend)


def _check_parallelism(config: PolicyConfig, packing: bool) -> None:
    layout = config["dtensor_cfg"]
    is_divided = layout.get("context_parallel_size", 1) > 1
    if is_divided and packing and layout.get("context_parallel_attention") != "gathered":
        raise ValueError(
            "Context parallel is not supported for sequence packing unless "
            "dtensor_cfg.context_parallel_attention=gathered is set: set it, or disable one of them"
        )
    if required(config, "dtensor_cfg.sequence_parallel") and layout.get("tensor_parallel_size", 1) == 1:
        report("WARNING: sequence_parallel=True has no effect with tp_size=1")
    if layout.get("moe_parallelizer") and int(layout.get("expert_parallel_size", 1)) == 1:
        report("WARNING: dtensor_cfg.moe_parallelizer has no effect with expert_parallel_size=1")

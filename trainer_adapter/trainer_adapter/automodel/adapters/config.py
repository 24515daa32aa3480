"""The settings of adapters in dtensor_cfg.lora_cfg, checked before anything is loaded.

The keys are named as in NeMo Automodel's PeftConfig. An unknown key is an error: a misspelt rank would otherwise train
a different model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from trainer_adapter.automodel.config import check_types, is_enabled


@dataclass(frozen=True)
class PeftConfig:
    """Low-rank adapters (LoRA, arXiv:2106.09685): a layer W computes with W + B @ A * (alpha / dim).

    target_modules: layers to adapt, by the last part of their name ("q_proj") or a pattern for the whole name
    ("*.self_attn.*").
    match_all_linear: adapt all linear layers except the output head, whose adapter would be as large as a layer of the
    model.
    exclude_modules: layers not to adapt, by the same rules; takes precedence.
    dim: rows of A, the rank.
    dropout: the probability with which, in training, an element of the adapter's input (dropout_position "pre") or
    output ("post") is set to 0.
    lora_A_init: the initial values of A, "xavier" (normal) or "uniform", also called "kaiming" (torch's default for a
    linear layer). B starts at 0.
    """

    dim: int = 8
    alpha: float = 32
    dropout: float = 0.0
    dropout_position: Literal["pre", "post"] = "post"
    target_modules: tuple[str, ...] = ()
    exclude_modules: tuple[str, ...] = ()
    match_all_linear: bool = False
    lora_A_init: Literal["xavier", "uniform", "kaiming"] = "xavier"  # noqa: N815  # as in NeMo Automodel

    @classmethod
    def from_dict(cls, lora_cfg: Mapping[str, Any]) -> PeftConfig:
        """Read the keys above, and `enabled`, `use_triton` and `lora_dtype`, which allow one value only.

        Raises ValueError naming the key for an unknown key and for an invalid value.
        """
        settings = {key: value for key, value in lora_cfg.items() if key not in ("enabled", "use_triton", "lora_dtype")}
        check_keys(settings, cls)
        _check_unchangeable(lora_cfg)
        names = {key: settings.get(key) or () for key in ("target_modules", "exclude_modules")}
        check_types(settings | names, cls, "dtensor_cfg.lora_cfg.")
        config = cls(**settings | {key: tuple(value) for key, value in names.items()})
        if not (config.match_all_linear or config.target_modules):
            raise ValueError("dtensor_cfg.lora_cfg must name target_modules or set match_all_linear")
        if not 0 <= config.dropout < 1:
            raise ValueError(f"dtensor_cfg.lora_cfg.dropout must be at least 0 and below 1, not {config.dropout}")
        return config


def peft_config(dtensor_cfg: Mapping[str, Any], tp_size: int, device: str) -> PeftConfig | None:
    """Read the adapters of dtensor_cfg; None if they are not enabled.

    NotImplementedError for dropout if tensor-parallel ranks cannot draw the same random numbers.
    """
    lora_cfg = enabled_lora_cfg(dtensor_cfg, tp_size)
    if lora_cfg is None:
        return None
    config = PeftConfig.from_dict(lora_cfg)
    repeats = bool(dtensor_cfg.get("activation_checkpointing", False))
    if config.dropout > 0 and tp_size > 1 and (device == "cpu" or repeats):
        raise NotImplementedError(
            "dtensor_cfg.lora_cfg.dropout with tensor_parallel_size > 1 needs device=cuda, because on the CPU ranks "
            "would drop different elements of replicated tensors, and activation_checkpointing=false, because a "
            "repeated forward pass might drop others than the first"
        )
    return config


def enabled_lora_cfg(dtensor_cfg: Mapping[str, Any], tp_size: int) -> Mapping[str, Any] | None:
    """Return dtensor_cfg.lora_cfg; None if it is not enabled. AssertionError for use_triton with tensor parallelism."""
    if not is_enabled(dtensor_cfg, "lora_cfg"):
        return None
    lora_cfg: Mapping[str, Any] = dtensor_cfg["lora_cfg"]
    if tp_size > 1 and lora_cfg.get("use_triton"):
        raise AssertionError("dtensor_cfg.lora_cfg: use_triton must be false with tensor_parallel_size > 1")
    return lora_cfg


def check_keys(settings: Mapping[str, Any], peft_config: Any) -> None:
    """Raise ValueError naming the keys that are no fields of the class peft_config."""
    known = {field.name for field in fields(peft_config)}
    if unknown := sorted(settings.keys() - known):
        raise ValueError(f"dtensor_cfg.lora_cfg: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")


def _check_unchangeable(lora_cfg: Mapping[str, Any]) -> None:
    if lora_cfg.get("use_triton"):
        raise ValueError(
            "dtensor_cfg.lora_cfg.use_triton must be false: the transformers backend has no Triton kernels"
        )
    if str(lora_cfg.get("lora_dtype") or "float32") not in ("float32", "torch.float32"):
        raise ValueError(
            f"dtensor_cfg.lora_cfg.lora_dtype must be float32, not {lora_cfg['lora_dtype']}: weights are kept in "
            "float32, and layers compute in the policy's precision"
        )

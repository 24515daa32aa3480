"""The device and the attention that a policy's configuration chooses.

The installed hardware never changes them: a job that asks for GPUs and finds none must fail, because training on the
CPU would be a thousand times slower.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from trainer_adapter.automodel.config import required

_PACKED_ATTENTIONS = {"sdpa": "sdpa", "flash": "flash_attention_2", "flex": "flex_attention"}
"""Their names in transformers."""


def _choice(config: Mapping[str, Any], key: str, allowed: tuple[str, ...], block: str = "dtensor_cfg") -> str:
    """Return <block>.<key>; the first of `allowed` is the default. ValueError for a value that is not allowed."""
    value: str = required(config, block).get(key, allowed[0])
    if value not in allowed:
        raise ValueError(f"{block}.{key} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def device_type(config: Mapping[str, Any]) -> str:
    """Return dtensor_cfg.device, "cuda" (default) or "cpu"."""
    return _choice(config, "device", ("cuda", "cpu"))


def context_parallel_attention(config: Mapping[str, Any]) -> str:
    """Return dtensor_cfg.context_parallel_attention; the default is "torch" on GPUs and "gathered" on the CPU."""
    on_gpu = device_type(config) == "cuda"
    return _choice(config, "context_parallel_attention", ("torch", "gathered") if on_gpu else ("gathered", "torch"))


def packed_attention(config: Mapping[str, Any]) -> str:
    """Return the name in transformers of sequence_packing.attention; "flash" is the default on GPUs, "sdpa" on the CPU.

    Raises ValueError for one that the device or the precision does not allow, ImportError for "flash" without a package
    that has its kernels.
    """
    on_gpu = device_type(config) == "cuda"
    chosen = _choice(
        config, "attention", ("flash", "sdpa", "flex") if on_gpu else ("sdpa", "flash", "flex"), "sequence_packing"
    )
    if chosen != "sdpa" and not on_gpu:
        raise ValueError(f"sequence_packing.attention={chosen} needs device=cuda; use sdpa")
    if chosen == "flash":
        _check_flash(required(config, "precision"))
    return _PACKED_ATTENTIONS[chosen]


def _check_flash(precision: str) -> None:
    if precision == "float32":
        raise ValueError("sequence_packing.attention=flash needs precision=bfloat16; for float32 use sdpa or flex")
    if not any(importlib.util.find_spec(package) for package in ("flash_attn", "kernels")):
        raise ImportError(
            "sequence_packing.attention=flash, the default on GPUs, needs the package flash-attn or kernels: install "
            "one, or use sdpa or flex"
        )

"""DOC"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_adapter.automodel.config import required


def _choice(config: Mapping[str, Any], key: str, allowed: tuple[str, str]) -> str:
    """The value of dtensor_cfg.<key>; the first of `allowed` is its default."""
    value: str = required(config, "dtensor_cfg").get(key, allowed[0])
    if value not in allowed:
        raise ValueError(f"dtensor_cfg.{key} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def device_type(config: Mapping[str, Any]) -> str:
    return _choice(config, "device", ("cuda", "cpu"))


def context_parallel_attention(config: Mapping[str, Any]) -> str:
    """How layers attend over sequences that are dealt out: "torch" on GPUs, else "gathered", unless it is chosen."""
    if device_type(config) == "cuda":
        return _choice(config, "context_parallel_attention", ("torch", "gathered"))
    chosen = _choice(config, "context_parallel_attention", ("gathered", "torch"))
    if chosen == "torch":
        raise ValueError("dtensor_cfg.context_parallel_attention=torch needs device=cuda; use gathered")
    return chosen

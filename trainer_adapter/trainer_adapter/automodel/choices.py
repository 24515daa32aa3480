"""The device and the attention that a policy's configuration chooses.

The installed hardware never changes them: a job that asks for GPUs and finds none must fail, because training on the
CPU would be a thousand times slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_adapter.automodel.config import required


def _choice(config: Mapping[str, Any], key: str, allowed: tuple[str, str]) -> str:
    """Return dtensor_cfg.<key>; the first of `allowed` is the default. ValueError for a value that is not allowed."""
    value: str = required(config, "dtensor_cfg").get(key, allowed[0])
    if value not in allowed:
        raise ValueError(f"dtensor_cfg.{key} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def device_type(config: Mapping[str, Any]) -> str:
    """Return dtensor_cfg.device, "cuda" (default) or "cpu"."""
    return _choice(config, "device", ("cuda", "cpu"))


def context_parallel_attention(config: Mapping[str, Any]) -> str:
    """Return dtensor_cfg.context_parallel_attention; the default is "torch" on GPUs and "gathered" on the CPU.

    Raises ValueError for "torch" on the CPU.
    """
    if device_type(config) == "cuda":
        return _choice(config, "context_parallel_attention", ("torch", "gathered"))
    chosen = _choice(config, "context_parallel_attention", ("gathered", "torch"))
    if chosen == "torch":
        raise ValueError("dtensor_cfg.context_parallel_attention=torch needs device=cuda; use gathered")
    return chosen

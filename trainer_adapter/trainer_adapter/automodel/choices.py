"""The device and the attention that a policy's configuration chooses.

The installed hardware never changes them: a job that asks for GPUs and finds none must fail, because training on the
CPU would be a thousand times slower. The configuration has been validated.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from trainer_adapter.automodel.config import required

_PACKED_ATTENTIONS = {"sdpa": "sdpa", "flash": "flash_attention_2", "flex": "flex_attention"}
"""Their names in transformers."""


def device_type(config: Mapping[str, Any]) -> str:
    """Return dtensor_cfg.device, "cuda" (default) or "cpu"."""
    return str(required(config, "dtensor_cfg").get("device", "cuda"))


def context_parallel_attention(config: Mapping[str, Any]) -> str:
    """Return dtensor_cfg.context_parallel_attention; the default is "torch" on GPUs and "gathered" on the CPU."""
    default = "torch" if device_type(config) == "cuda" else "gathered"
    return str(config["dtensor_cfg"].get("context_parallel_attention", default))


def packed_attention(config: Mapping[str, Any]) -> str:
    """Return the name in transformers of sequence_packing.attention; "flash" is the default on GPUs, "sdpa" on the CPU.

    Raises ValueError for one that the device or the precision does not allow, ImportError for "flash" without a package
    that has its kernels.
    """
    on_gpu = device_type(config) == "cuda"
    chosen = config["sequence_packing"].get("attention", "flash" if on_gpu else "sdpa")
    if chosen != "sdpa" and not on_gpu:
        raise ValueError(f"sequence_packing.attention={chosen} needs device=cuda; use sdpa")
    if chosen == "flash" and required(config, "precision") == "float32":
        raise ValueError("sequence_packing.attention=flash needs precision=bfloat16; for float32 use sdpa or flex")
    if chosen == "flash" and not any(importlib.util.find_spec(package) for package in ("flash_attn", "kernels")):
        raise ImportError(
            "sequence_packing.attention=flash, the default on GPUs, needs the package flash-attn or kernels: install "
            "one, or use sdpa or flex"
        )
    return _PACKED_ATTENTIONS[chosen]

"""How a model keeps the sequences of a packed row apart.

Models of transformers go by position ids, which start anew with each sequence, or by bounds. NeMo Automodel's own
models read no such bounds, and most ignore position ids in attention: their sequences would attend to each other
without an error. The own models listed here are proved to keep sequences apart, in the way that the package's own data
loader does. All others are refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_adapter.automodel.data import FlashAttentionKwargs, ProcessedInputs
from trainer_adapter.automodel.models.force_hf import architecture_of
from trainer_adapter.automodel.packages import PACKAGE, from_package

_BY_POSITIONS = frozenset(["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
"""Their attention is that of transformers."""
_BY_MASK = frozenset(["Qwen3MoeForCausalLM"])
"""Their attention takes a mask [B,1,S,S] with the package's backend "sdpa"."""


def check_own_packing(model_config: Any, backend: Any) -> None:
    """NotImplementedError unless the package's own model keeps packed sequences apart.

    backend: the package's BackendConfig; None: its default, which depends on the installed packages.
    """
    architecture = architecture_of(model_config)
    if architecture in _BY_POSITIONS:
        return
    attention = (backend or from_package("components.models.common", "BackendConfig")()).attn
    if architecture in _BY_MASK and attention == "sdpa":
        return
    sdpa = ", or its backend.attn=sdpa" if architecture in _BY_MASK else ""
    raise NotImplementedError(
        f"sequence_packing.enabled: NeMo Automodel's own {architecture} with attention {attention!r} is not known to "
        f"keep packed sequences apart. Set dtensor_cfg.automodel_kwargs.force_hf=true{sdpa}, or "
        "sequence_packing.enabled=false"
    )


def packing_arguments(model: torch.nn.Module, inputs: ProcessedInputs) -> dict[str, Any]:
    """The model's arguments, beside position ids, for packed inputs."""
    own = _own_class(model)
    if own is None:
        return {"flash_attn_kwargs": inputs.flash_attn_kwargs}
    if own in _BY_MASK and isinstance(inputs.flash_attn_kwargs, FlashAttentionKwargs):
        return _masks(inputs.flash_attn_kwargs.cu_seqlens_q, inputs.seq_len)
    return {}


def _own_class(model: torch.nn.Module) -> str | None:
    """The name of the package's class, which FSDP derives from; None for a model of transformers."""
    names = (kind.__name__ for kind in type(model).__mro__ if _is_own(kind.__module__))
    return next(names, None)


def _is_own(module: str) -> bool:
    return module.startswith(f"{PACKAGE}.components.models.") and module.endswith(".model")


def _masks(bounds: Tensor, width: int) -> dict[str, Tensor]:
    """attention_mask [1,1,S,S]: each token sees its own sequence up to itself. padding_mask [1,S]: true behind the last
    sequence; experts skip these tokens.
    """
    columns = torch.arange(width, device=bounds.device)
    sequence = torch.searchsorted(bounds[1:].contiguous(), columns, right=True)
    seen = (sequence[:, None] == sequence) & (columns <= columns[:, None])
    return {"attention_mask": seen[None, None], "padding_mask": (columns >= bounds[-1])[None]}

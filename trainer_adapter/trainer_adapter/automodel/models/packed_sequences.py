"""How a model keeps the sequences of a packed row apart.

Models of transformers go by position ids, which start anew with each sequence, or by bounds (FlashAttention). NeMo
Automodel's own models read no such bounds, and most ignore position ids in attention: their sequences would attend to
each other without an error. The own models listed here are proved to keep sequences apart, in the way that the
package's own data loader does. All others are refused.
"""

from __future__ import annotations

import re
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
    attention = (backend or from_package("BackendConfig")()).attn
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
    packed = inputs.flash_attn_kwargs
    if not isinstance(packed, FlashAttentionKwargs):
        return {}
    own = _own_class(model)
    if own is None:
        return _bounds(packed, inputs.seq_len)
    return _masks(packed.cu_seqlens_q, inputs.seq_len) if own in _BY_MASK else {}


def _bounds(packed: FlashAttentionKwargs, width: int) -> dict[str, Any]:
    """The bounds by the names that transformers reads; without them FlashAttention derives them from the position ids
    in every layer, which makes the host wait for the device.

    The padding at the end is a sequence too: kernels write no output for tokens of no sequence, and a NaN in memory
    that was never written would reach the weights.
    """
    end = packed.bounds[-1]
    ends = packed.cu_seqlens_q if end == width else torch.nn.functional.pad(packed.cu_seqlens_q, (0, 1), value=width)
    longest = max(packed.max_seqlen_q, width - end)
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def _own_class(model: torch.nn.Module) -> str | None:
    """The name of the package's class, which FSDP derives from; None for a model of transformers."""
    models = rf"{PACKAGE}\.components\.models\..*\.model"
    return next((kind.__name__ for kind in type(model).__mro__ if re.fullmatch(models, kind.__module__)), None)


def _masks(bounds: Tensor, width: int) -> dict[str, Tensor]:
    """attention_mask [1,1,S,S]: each token sees its own sequence up to itself. padding_mask [1,S]: true behind the last
    sequence; experts skip these tokens.
    """
    columns = torch.arange(width, device=bounds.device)
    sequence = torch.searchsorted(bounds[1:].contiguous(), columns, right=True)
    seen = (sequence[:, None] == sequence) & (columns <= columns[:, None])
    return {"attention_mask": seen[None, None], "padding_mask": (columns >= bounds[-1])[None]}

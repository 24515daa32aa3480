"""The modules that output a model's queries, keys and values.

The output is that of the norm of heads if the model has one (Qwen3: k_norm), otherwise that of the projection. Some
models have one projection for all three. It is split only for models that are known to place the three side by side in
its columns; other models interleave them by head, and a wrong split would only show as wrong numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

KINDS = ("q", "k", "v")
_FUSED = {"phi3": "qkv_proj", "gpt2": "c_attn"}
"""Names of projections for all three, by model type."""
_NORMS = {
    "q": ("q_norm", "q_layernorm", "q_layer_norm", "query_layernorm"),
    "k": ("k_norm", "k_layernorm", "k_layer_norm", "key_layernorm"),
    "v": ("v_norm",),
}


class Source(NamedTuple):
    """A module, and the columns of its output's last dimension for each of KINDS."""

    module: nn.Module
    columns: dict[str, slice]


def qkv_sources(model: nn.Module) -> dict[str, list[Source]]:
    """The sources of each attention layer of the decoder, by the layer's name in the model.

    Raises ValueError naming the model's class if they cannot be located.
    """
    decoder = set(_decoder(model).modules())
    layers = {name: _find_sources(model, module) for name, module in model.named_modules() if module in decoder}
    found = {name: sources for name, sources in layers.items() if sources}
    if not found:
        raise ValueError(
            f"cannot calibrate keys and values of {type(model).__name__}: its layers have no q_proj, k_proj and "
            f"v_proj, and a projection for all three is supported for {' and '.join(_FUSED)} only"
        )
    return found


def _decoder(model: Any) -> nn.Module:
    """The model without an image encoder, whose attention has no cache."""
    decoder: nn.Module = model.get_decoder() if hasattr(model, "get_decoder") else model
    return decoder


def _find_sources(model: Any, layer: nn.Module) -> list[Source]:
    children = dict(layer.named_children())
    if all(f"{kind}_proj" in children for kind in KINDS):
        if "qk_norm" in children:
            raise ValueError(f"{type(model).__name__} has one norm for queries and keys; that is not supported")
        return [Source(_output_module(children, kind), {kind: slice(None)}) for kind in KINDS]
    fused = children.get(_FUSED.get(getattr(model.config, "model_type", ""), ""))
    return [] if fused is None else [Source(fused, _fused_columns(model.config))]


def _output_module(children: dict[str, nn.Module], kind: str) -> nn.Module:
    """The last module that the values of this kind pass before they are rotated."""
    return next((children[name] for name in _NORMS[kind] if name in children), children[f"{kind}_proj"])


def _fused_columns(config: Any) -> dict[str, slice]:
    heads = config.num_attention_heads
    of_keys = getattr(config, "num_key_value_heads", heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    values = (heads + of_keys) * size
    return {"q": slice(heads * size), "k": slice(heads * size, values), "v": slice(values, values + of_keys * size)}

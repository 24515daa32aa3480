"""Who builds the model and where it computes: two choices of the user's, never made by what happens to be installed.

`dtensor_cfg.model_backend` is "transformers" (the default: models of Hugging Face, laid out over the ranks by this
package) or "automodel" (NeMo Automodel, which does both by itself). `dtensor_cfg.device` is "cuda" (the default) or
"cpu". A job that asked for GPUs and found none must fail rather than train a thousand times slower. The device also
decides how layers attend over sequences that are dealt out, unless `dtensor_cfg.context_parallel_attention` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_adapter.automodel.choices import _choice
from trainer_adapter.automodel.packages import from_package, is_installed, require_transformers

_IMAGE_TEXT_MODELS = frozenset(
    ["qwen2_5_vl", "qwen2_vl", "qwen3_5", "llava", "internvl", "gemma3", "smolvlm", "mistral3", "llama4"]
)


def require_model_backend(config: Mapping[str, Any]) -> str:
    """The chosen backend; ImportError naming the extra to install.

    nemo_automodel is looked for and not imported: that takes 6 s.
    """
    backend = _choice(config, "model_backend", ("transformers", "automodel"))
    require_transformers()
    if backend == "automodel" and not is_installed():
        raise ImportError(
            "dtensor_cfg.model_backend=automodel needs nemo_automodel: pip install 'rl-dataplane[automodel]'"
        )
    return backend


def resolve_model_class(model_type: str, backend: str = "transformers") -> Any:
    """The backend's class whose from_pretrained loads models of this type, letters of any case."""
    if model_type.lower() in _IMAGE_TEXT_MODELS:
        return _auto_class("AutoModelForImageTextToText", backend)
    if model_type.lower() == "qwen2_5_omni":
        return _auto_class("AutoModelForTextToWaveform", backend)
    return _auto_class("AutoModelForCausalLM", backend)


def reward_model_class(reward_model_type: str, backend: str = "transformers") -> Any:
    """The backend's class for models whose output is one score a sequence; ValueError for an unknown type."""
    if reward_model_type != "bradley_terry":
        raise ValueError(f"Unknown reward model type: {reward_model_type}")
    return _auto_class("AutoModelForSequenceClassification", backend)


def _auto_class(name: str, backend: str) -> Any:
    if backend == "automodel":
        return from_package("_transformers.auto_model", f"NeMo{name}")
    return getattr(require_transformers(), name)

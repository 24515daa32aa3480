"""Who builds the model and where it computes: two choices of the user's, never made by what happens to be installed.

`dtensor_cfg.model_backend` is "transformers" (the default: models of Hugging Face, laid out over the ranks by this
package) or "automodel" (NeMo Automodel, which does both by itself). `dtensor_cfg.device` is "cuda" (the default) or
"cpu". A job that asked for GPUs and found none must fail rather than train a thousand times slower.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from trainer_adapter.automodel.config import required

try:
    import transformers
except ImportError:  # the extra "trainer" is not installed
    transformers = None  # type: ignore[assignment]

_IMAGE_TEXT_MODELS = frozenset(
    ["qwen2_5_vl", "qwen2_vl", "qwen3_5", "llava", "internvl", "gemma3", "smolvlm", "mistral3", "llama4"]
)


def _choice(config: Mapping[str, Any], key: str, allowed: tuple[str, str]) -> str:
    """The value of dtensor_cfg.<key>; the first of `allowed` is its default."""
    value: str = required(config, "dtensor_cfg").get(key, allowed[0])
    if value not in allowed:
        raise ValueError(f"dtensor_cfg.{key} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def device_type(config: Mapping[str, Any]) -> str:
    return _choice(config, "device", ("cuda", "cpu"))


def require_transformers() -> Any:
    """The package; ImportError naming the extra to install."""
    if transformers is None:
        raise ImportError("this needs transformers: pip install 'rl-dataplane[trainer]'")
    return transformers


def require_model_backend(config: Mapping[str, Any]) -> str:
    """The chosen backend; ImportError naming the extra to install, NotImplementedError for "automodel".

    nemo_automodel is looked for and not imported: that takes 6 s.
    """
    backend = _choice(config, "model_backend", ("transformers", "automodel"))
    require_transformers()
    if backend == "automodel":
        if importlib.util.find_spec("nemo_automodel") is None:
            raise ImportError(
                "dtensor_cfg.model_backend=automodel needs nemo_automodel: pip install 'rl-dataplane[automodel]'"
            )
        raise NotImplementedError(
            "dtensor_cfg.model_backend=automodel: models of NeMo Automodel cannot be set up yet; use transformers"
        )
    return backend


def resolve_model_class(model_type: str) -> Any:
    """The class of Hugging Face whose from_pretrained loads models of this type, letters of any case."""
    package = require_transformers()
    if model_type.lower() in _IMAGE_TEXT_MODELS:
        return package.AutoModelForImageTextToText
    if model_type.lower() == "qwen2_5_omni":
        return package.AutoModelForTextToWaveform
    return package.AutoModelForCausalLM


def reward_model_class(reward_model_type: str) -> Any:
    """The class for models whose output is one score a sequence; ValueError for an unknown type."""
    if reward_model_type != "bradley_terry":
        raise ValueError(f"Unknown reward model type: {reward_model_type}")
    return require_transformers().AutoModelForSequenceClassification

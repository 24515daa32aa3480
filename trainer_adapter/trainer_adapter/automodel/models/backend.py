"""The package that builds the model, and its classes.

`dtensor_cfg.model_backend` is "automodel" (NeMo Automodel, which loads and shards by itself) or "transformers" (models
of Hugging Face, sharded by this package). Without it, "automodel" if that is installed. Every rank reports which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_adapter.automodel.packages import from_package, is_installed, require_transformers

_IMAGE_TEXT_MODELS = frozenset(
    ["qwen2_5_vl", "qwen2_vl", "qwen3_5", "llava", "internvl", "gemma3", "smolvlm", "mistral3", "llama4"]
)
_CLASSES = {
    **dict.fromkeys(_IMAGE_TEXT_MODELS, "AutoModelForImageTextToText"),
    "qwen2_5_omni": "AutoModelForTextToWaveform",
}


def require_model_backend(config: Mapping[str, Any]) -> str:
    """Return the backend, chosen or by default. ImportError naming the extra to install.

    Does not import nemo_automodel, which takes 6 s.
    """
    backend = str(config["dtensor_cfg"].get("model_backend", "automodel" if is_installed() else "transformers"))
    require_transformers()
    if backend == "automodel" and not is_installed():
        raise ImportError(
            "dtensor_cfg.model_backend=automodel needs nemo_automodel: pip install 'rl-dataplane[automodel]'"
        )
    return backend


def resolve_model_class(model_type: str, backend: str = "transformers") -> Any:
    """The backend's class whose from_pretrained loads models of this type; the case of letters is ignored."""
    return auto_class(_CLASSES.get(model_type.lower(), "AutoModelForCausalLM"), backend)


def auto_class(name: str, backend: str) -> Any:
    if backend == "automodel":
        return from_package(f"NeMo{name}")
    return getattr(require_transformers(), name)

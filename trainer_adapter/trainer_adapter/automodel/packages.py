"""Optional packages: transformers and NeMo Automodel, and errors that name the extra to install.

NeMo Automodel is imported only when its backend is used, because the import takes 6 to 9 s. Its releases move and
rename their parts, most of which are private. All that is used of it is listed here, where 0.7 has it. Another release
is recognised by the parts that it lacks, not by its version number, so a patched release works as well.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

try:
    import transformers
except ImportError:  # the extra "trainer" is not installed
    transformers = None  # type: ignore[assignment]

PACKAGE = "nemo_automodel"
SUPPORTED = "0.7"
PARTS = {
    "_transformers.auto_model": (
        "NeMoAutoModelForCausalLM",
        "NeMoAutoModelForImageTextToText",
        "NeMoAutoModelForSequenceClassification",
        "NeMoAutoModelForTextToWaveform",
    ),
    "_transformers.auto_tokenizer": ("NeMoAutoTokenizer",),
    "_transformers.model_init": ("get_is_hf_model",),
    "_transformers.registry": ("ModelRegistry",),
    "components._peft.lora": ("PeftConfig", "apply_lora_to_linear_modules"),
    "components.config.loader": ("_resolve_target",),
    "components.distributed.config": ("DistributedSetup", "FSDP2Config", "MoEParallelizerConfig"),
    "components.distributed.mesh": ("ParallelismSizes",),
    "components.distributed.mesh_utils": ("get_flat_mesh",),
    "components.distributed.model_parallelizer": ("parallelize_model",),
    "components.distributed.tp_replicas": (
        "mark_tp_replica_gradient_reduction",
        "synchronize_tp_replica_gradients",
    ),
    "components.models.common": ("BackendConfig",),
}
"""Names that are used of the package, by its modules."""
_MODULES = {name: module for module, names in PARTS.items() for name in names}


def is_installed() -> bool:
    """Whether nemo_automodel is installed; does not import it."""
    return importlib.util.find_spec(PACKAGE) is not None


def from_package(name: str) -> Any:
    """Return one of PARTS. ImportError naming the extra to install, or what the installed release has elsewhere."""
    if not is_installed():
        raise ImportError(f"this needs {PACKAGE}: pip install 'rl-dataplane[automodel]'")
    try:
        return _found(_MODULES[name], name)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"{PACKAGE} lacks {', '.join(missing_parts())} ({error}): this needs nemo-automodel {SUPPORTED} with all "
            "it imports; pip install 'rl-dataplane[automodel]'"
        ) from error


def missing_parts() -> list[str]:
    """What the installed release does not have where it is looked for, as module.name; imports the package."""
    missing = []
    for name, module in _MODULES.items():
        try:
            _found(module, name)
        except (ImportError, AttributeError):  # noqa: PERF203  # there are 17
            missing.append(f"{module}.{name}")
    return missing


def _found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)


def require_transformers() -> Any:
    """Return the package transformers. ImportError naming the extra to install."""
    if transformers is None:
        raise ImportError("this needs transformers: pip install 'rl-dataplane[trainer]'")
    return transformers

"""Whether a custom model of NeMo Automodel can be trained here and its weights be sent to engines.

Custom implementations keep weights in their own layout, such as fused projections, and have a state-dict adapter that
translates to the names of generation engines. Weights are sent one tensor at a time, so the adapter must be able to
translate a single tensor. This is checked on the adapter's class, before the model is loaded, which takes minutes.

Two models of release 0.7 compute a wrong gradient of the embeddings with tensor parallelism (off by two thirds of its
norm). No attribute shows this, so they are listed by name.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

from trainer_adapter.automodel.packages import from_package
from trainer_adapter.automodel.rank import report

_TRANSLATOR = "convert_single_tensor_to_hf"
_WRONG_WITH_TENSOR_PARALLELISM = frozenset(["LlamaForCausalLM", "Qwen2ForCausalLM"])


def _maybe_set_force_hf(automodel_kwargs: dict[str, Any], model_config: Any) -> None:
    """Set `automodel_kwargs["force_hf"]` if only the Hugging Face implementation of the model can be used.

    Raises RuntimeError if the user set force_hf=False for such a model, ImportError without nemo_automodel.
    """
    if automodel_kwargs.get("force_hf") is True:
        return
    architecture = architecture_of(model_config)
    registered: dict[str, type] = from_package("ModelRegistry").model_arch_name_to_cls
    if architecture in registered and not _translates(_adapter_module(registered[architecture])):
        lack = f"the state-dict adapter of {architecture} has no {_TRANSLATOR}, so that engines cannot get its weights"
        _force(automodel_kwargs, lack, "file an issue with NeMo Automodel")


def force_hf_with_tensor_parallelism(automodel_kwargs: dict[str, Any], model_config: Any) -> None:
    """Set `automodel_kwargs["force_hf"]` for a model whose gradients are wrong with tensor parallelism.

    Raises RuntimeError if the user set force_hf=False for such a model.
    """
    architecture = architecture_of(model_config)
    if automodel_kwargs.get("force_hf") is not True and architecture in _WRONG_WITH_TENSOR_PARALLELISM:
        lack = f"NeMo Automodel's own {architecture} has wrong gradients with tensor_parallel_size > 1"
        _force(automodel_kwargs, lack, "tensor_parallel_size=1")


def _force(automodel_kwargs: dict[str, Any], lack: str, otherwise: str) -> None:
    if automodel_kwargs.get("force_hf") is False:
        raise RuntimeError(
            f"force_hf=False, but {lack}. Set policy.dtensor_cfg.automodel_kwargs.force_hf=true or {otherwise}"
        )
    report(f"WARNING: {lack}; using force_hf=True")
    automodel_kwargs["force_hf"] = True


def architecture_of(model_config: Any) -> str | None:
    """The name of the model's class; None if its configuration names none."""
    return next(iter(getattr(model_config, "architectures", None) or []), None)


def _adapter_module(model_class: type) -> ModuleType | None:
    """The module `state_dict_adapter` beside the model's; None if the package has none."""
    package = model_class.__module__.rpartition(".")[0]
    try:
        return importlib.import_module(f"{package}.state_dict_adapter")
    except (ImportError, AttributeError):
        return None


def _translates(module: ModuleType | None) -> bool:
    """Whether the module's first adapter, by name, can translate one tensor; true if there is no adapter."""
    classes = inspect.getmembers(module, inspect.isclass)
    adapter = next((found for name, found in classes if name.endswith("StateDictAdapter")), None)
    if adapter is None:
        return True
    method = getattr(adapter, _TRANSLATOR, None)
    return method is not None and not getattr(method, "__isabstractmethod__", False)

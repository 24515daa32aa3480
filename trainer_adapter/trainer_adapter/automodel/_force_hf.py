"""Whether a custom model of NeMo Automodel can hand its weights on under the names that generation engines know.

Custom implementations keep weights in a layout of their own (fused projections, say) and translate with a state-dict
adapter. Weights are sent one tensor at a time, so the adapter must be able to translate one tensor. That is found out
from the adapter's class, before minutes are spent on loading the model.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

from trainer_adapter.automodel._report import report

_TRANSLATOR = "convert_single_tensor_to_hf"


def _maybe_set_force_hf(automodel_kwargs: dict[str, Any], model_config: Any) -> None:
    """Set `automodel_kwargs["force_hf"]` where only the Hugging Face implementation of the model can be used.

    Raises RuntimeError where the user forbade that with force_hf=False, ImportError without nemo_automodel.
    """
    if automodel_kwargs.get("force_hf") is True:
        return
    architecture = next(iter(getattr(model_config, "architectures", None) or []), None)
    registered = _registered_classes()
    if architecture not in registered or _translates(_adapter_module(registered[architecture])):
        return
    if automodel_kwargs.get("force_hf") is False:
        raise RuntimeError(
            f"force_hf=False, but the weights of {architecture} cannot be sent: its state-dict adapter has no "
            f"{_TRANSLATOR}. Set policy.dtensor_cfg.automodel_kwargs.force_hf=true or file an issue with NeMo Automodel"
        )
    report(f"WARNING: the state-dict adapter of {architecture} has no {_TRANSLATOR}; using force_hf=True")
    automodel_kwargs["force_hf"] = True


def _registered_classes() -> dict[str, type]:
    """The custom implementations by the name of their architecture."""
    try:
        registry = importlib.import_module("nemo_automodel._transformers.registry")
    except ImportError as error:
        raise ImportError("custom models need nemo_automodel: pip install 'rl-dataplane[automodel]'") from error
    classes: dict[str, type] = registry.ModelRegistry.model_arch_name_to_cls
    return classes


def _adapter_module(model_class: type) -> ModuleType | None:
    """The module `state_dict_adapter` beside the model's; None where a model is laid out otherwise."""
    package = model_class.__module__.rpartition(".")[0]
    try:
        return importlib.import_module(f"{package}.state_dict_adapter")
    except (ImportError, AttributeError):
        return None


def _translates(module: ModuleType | None) -> bool:
    """Whether the module's first adapter, by name, can translate one tensor; true where there is no adapter."""
    if module is None:
        return True
    classes = inspect.getmembers(module, inspect.isclass)
    adapter = next((found for name, found in classes if name.endswith("StateDictAdapter")), None)
    if adapter is None:
        return True
    method = getattr(adapter, _TRANSLATOR, None)
    return method is not None and not getattr(method, "__isabstractmethod__", False)

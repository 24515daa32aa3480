"""The optimizer and the learning-rate schedule that a configuration names.

The optimizer must be built before the model's first forward pass. Afterwards FSDP2's root holds whole parameters, and
an optimizer over those would train tensors that nobody reads again.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, SequentialLR


def build_optimizer(model: torch.nn.Module, config: Mapping[str, Any]) -> Optimizer:
    """config: `name`, the dotted path of a class, and `kwargs`, in which strings that begin with "torch." stand for
    what torch calls so. Parameters that need no gradient are left out.
    """
    kwargs = {key: _resolved(value) for key, value in config.get("kwargs", {}).items()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: Optimizer = _class_named(config["name"], "optimizer.name")(trained, **kwargs)
    return optimizer


def build_scheduler(
    optimizer: Optimizer, config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
) -> LRScheduler:
    """One schedule; several, one after the other, with an entry `{"milestones": [steps]}`; None: a constant rate.

    Raises AssertionError for an entry of a list that is neither, ValueError for a list without milestones.
    """
    if config is None:
        return LambdaLR(optimizer, _constant)
    if isinstance(config, Mapping):
        return _one_scheduler(optimizer, config)
    schedulers, milestones = [], None
    for entry in config:
        if "name" in entry:
            schedulers.append(_one_scheduler(optimizer, entry))
        elif "milestones" in entry:
            milestones = list(entry["milestones"])
        else:
            raise AssertionError(f"unknown scheduler config: {dict(entry)} has neither name nor milestones")
    if milestones is None:
        raise ValueError("scheduler: a list of schedules needs an entry with milestones")
    return SequentialLR(optimizer, schedulers, milestones)


def _one_scheduler(optimizer: Optimizer, config: Mapping[str, Any]) -> LRScheduler:
    scheduler: LRScheduler = _class_named(config["name"], "scheduler.name")(optimizer, **config.get("kwargs", {}))
    return scheduler


def _constant(_step: int) -> float:
    return 1.0


def _class_named(path: str, field: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{field}: there is no class {path!r}") from error


def _resolved(value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith("torch.")):
        return value
    return _class_named(value, "optimizer.kwargs")

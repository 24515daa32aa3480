"""The optimizer and the learning-rate schedule that a configuration names.

Build the optimizer before the model's first forward pass. Afterwards FSDP2's root holds whole parameters, and an
optimizer over those would train tensors that are never read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, SequentialLR

from trainer_adapter.automodel.dotted_path import import_named


def build_optimizer(model: torch.nn.Module, config: Mapping[str, Any]) -> Optimizer:
    """Build an optimizer over the parameters that need a gradient.

    config: `name`, the dotted path of a class, and `kwargs`. Strings in kwargs that begin with "torch." name attributes
    of torch.
    """
    kwargs = {key: _resolve(value) for key, value in config.get("kwargs", {}).items()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: Optimizer = import_named(config["name"], "optimizer.name")(trained, **kwargs)
    return optimizer


def build_scheduler(
    optimizer: Optimizer, config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
) -> LRScheduler:
    """Build one schedule, or a sequence of several if the list has an entry `{"milestones": [steps]}`; None: a constant
    rate.

    Raises AssertionError for an entry of a list that is neither, ValueError for a list without milestones.
    """
    if config is None:
        return LambdaLR(optimizer, lambda _step: 1.0)
    if isinstance(config, Mapping):
        return _build_scheduler(optimizer, config)
    schedulers, milestones = [], None
    for entry in config:
        if "name" in entry:
            schedulers.append(_build_scheduler(optimizer, entry))
        elif "milestones" in entry:
            milestones = list(entry["milestones"])
        else:
            raise AssertionError(f"unknown scheduler config: {dict(entry)} has neither name nor milestones")
    if milestones is None:
        raise ValueError("scheduler: a list of schedules needs an entry with milestones")
    return SequentialLR(optimizer, schedulers, milestones)


def _build_scheduler(optimizer: Optimizer, config: Mapping[str, Any]) -> LRScheduler:
    scheduler: LRScheduler = import_named(config["name"], "scheduler.name")(optimizer, **config.get("kwargs", {}))
    return scheduler


def _resolve(value: Any) -> Any:
    is_name = isinstance(value, str) and value.startswith("torch.")
    return import_named(value, "optimizer.kwargs") if is_name else value

"""The optimizer and the learning-rate schedule that a configuration names.

Build the optimizer before the model's first forward pass. Afterwards FSDP2's root holds whole parameters, and an
optimizer over those would train tensors that are never read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau, SequentialLR

from trainer_adapter.automodel.config import SchedulerConfig, check_types, required
from trainer_adapter.automodel.dotted_path import import_named


def build_optimizer(model: torch.nn.Module, config: Mapping[str, Any]) -> Optimizer:
    """Build an optimizer over the parameters that need a gradient.

    config: see OptimizerConfig. ValueError for a name that is not found or arguments that the class refuses.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: Optimizer = _build("optimizer", config, trained)
    return optimizer


def build_scheduler(
    optimizer: Optimizer, config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
) -> LRScheduler:
    """Build one schedule, or a sequence of several if the list has an entry `{"milestones": [steps]}`; None: a constant
    rate.

    Raises AssertionError for an entry of a list that is neither, ValueError for a list without milestones, and what
    build_optimizer raises.
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
            check_types(entry, SchedulerConfig, "scheduler.")
            milestones = list(entry["milestones"])
        else:
            raise AssertionError(f"unknown scheduler config: {dict(entry)} has neither name nor milestones")
    if milestones is None:
        raise ValueError("scheduler: a list of schedules needs an entry with milestones")
    return SequentialLR(optimizer, schedulers, milestones)


def _build_scheduler(optimizer: Optimizer, config: Mapping[str, Any]) -> LRScheduler:
    check_types(config, SchedulerConfig, "scheduler.")
    scheduler: LRScheduler = _build("scheduler", config, optimizer)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError("scheduler.name: ReduceLROnPlateau follows a metric, and schedules here count steps alone")
    return scheduler


def _build(setting: str, config: Mapping[str, Any], subject: Any) -> Any:
    """Call the class that a setting names with its subject and its kwargs."""
    name: str = required({setting: config}, f"{setting}.name")
    kwargs = {key: _resolve(value, setting) for key, value in (config.get("kwargs") or {}).items()}
    made = import_named(name, f"{setting}.name")
    try:
        return made(subject, **kwargs)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{setting}.kwargs: {name} refuses {kwargs}: {error}") from error


def _resolve(value: Any, setting: str) -> Any:
    is_name = isinstance(value, str) and value.startswith("torch.")
    return import_named(value, f"{setting}.kwargs") if is_name else value

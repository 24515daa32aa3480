"""The state of an optimizer on disk: tensors sharded like the parameters they belong to, and plain numbers.

States are keyed by parameter names, so ranks with another layout can load the checkpoint.

A parameter has a state from its first gradient on, and torch would make up the others: before it returns the state of
an optimizer that has none, it takes a step of zeros, which Adam counts. So a state that the optimizer does not have is
neither saved nor left behind, and an optimizer that has loaded a checkpoint has the states that were saved and no more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from trainer_adapter.automodel.checkpoint._files import read_plain, read_tensors, write_plain
from trainer_adapter.automodel.rank import fail_together

_NUMBERS = "numbers.msgpack"


def write_numbers(folder: Path, model: torch.nn.Module, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Write the plain numbers to an existing, empty folder and return the tensors, which belong to the same folder; a
    collective call of all ranks.
    """
    is_new = not optimizer.state
    state: dict[str, Any] = dict(get_optimizer_state_dict(model, optimizer))
    if is_new:
        optimizer.state.clear()
        state["state"] = {}
    tensors, numbers = _split_state(state)
    with fail_together("writing the optimizer's numbers"):
        if torch.distributed.get_rank() == 0:
            write_plain(folder / _NUMBERS, numbers)
    return tensors


def read_optimizer(folder: Path, model: torch.nn.Module, optimizer: Optimizer) -> None:
    """Load the state; a collective call of all ranks. ValueError for the state of another optimizer or of other
    parameters; the optimizer then has the states that it had.
    """
    held = dict(optimizer.state)
    try:
        _replace_state(folder, model, optimizer)
    except BaseException:
        optimizer.state.clear()
        optimizer.state.update(held)
        raise


def _replace_state(folder: Path, model: torch.nn.Module, optimizer: Optimizer) -> None:
    current: dict[str, Any] = dict(get_optimizer_state_dict(model, optimizer))
    with fail_together("reading the optimizer's numbers"):
        saved = read_plain(folder / _NUMBERS, like=_split_state(current)[1])
    if not saved["scalars"].keys() <= current["state"].keys():
        current = _state_of_all(model, optimizer)
    current["state"] = {name: values for name, values in current["state"].items() if name in saved["scalars"]}
    tensors, numbers = _split_state(current)
    if _signature(saved) != _signature(numbers):
        raise ValueError(f"{folder} has the state of another optimizer, or of other parameters")
    if tensors:
        read_tensors(folder, tensors)
    state: dict[str, Any] = {name: dict(values) for name, values in current["state"].items()}
    for name, values in saved["scalars"].items():
        of_tensors = {key for key, value in state[name].items() if isinstance(value, torch.Tensor)}
        state[name].update({key: torch.tensor(value) if key in of_tensors else value for key, value in values.items()})
    loaded = {"state": state, "param_groups": saved["param_groups"]}
    set_optimizer_state_dict(model, optimizer, loaded, options=StateDictOptions(strict=False))


def _state_of_all(model: torch.nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Have torch make the state of every trained parameter, to be overwritten. It makes none beside gradients, which
    are those of other weights.
    """
    optimizer.state.clear()
    optimizer.zero_grad()
    return dict(get_optimizer_state_dict(model, optimizer))


def _split_state(state_dict: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Split into tensors by "<parameter>.<key>", and scalars (step counts) and groups, which are the same on
    all ranks.
    """
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for name, values in state_dict["state"].items():
        plain = {key: value.item() if getattr(value, "ndim", None) == 0 else value for key, value in values.items()}
        scalars[name] = {key: value for key, value in plain.items() if not isinstance(value, torch.Tensor)}
        tensors |= {f"{name}.{key}": value for key, value in plain.items() if isinstance(value, torch.Tensor)}
    return tensors, {"scalars": scalars, "param_groups": state_dict["param_groups"]}


def _signature(numbers: dict[str, Any]) -> Any:
    """The part of the state that two states of one optimizer over the same parameters share."""
    groups = [(group["params"], sorted(group)) for group in numbers["param_groups"]]
    return groups, {name: sorted(values) for name, values in numbers["scalars"].items()}

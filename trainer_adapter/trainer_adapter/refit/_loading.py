"""Weights into a model by their names, as an engine takes them in."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trainer_adapter.refit._generation_parameters import EXTRA_STATE, RefitInfo


@torch.no_grad()
def load_weights(model: nn.Module, info: RefitInfo, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy each weight into the entry of the model's state dict that has its name, casting where the dtype differs.

    info: what weights will yield. It is compared with the model before the first weight is taken.

    Raises ValueError naming what the model lacks, what it would not get, and what has another shape; nothing is changed
    then. Raises ValueError, too late for that, where weights end before all of info came.
    """
    state = {name: value for name, value in model.state_dict().items() if not name.endswith(EXTRA_STATE)}
    _check(state, info)
    missing = set(info)
    for name, weight in weights:
        state[name].copy_(weight)
        missing.discard(name)
    if missing:
        raise ValueError(f"weights ended without {', '.join(sorted(missing))}")


def _check(state: dict[str, Tensor], info: RefitInfo) -> None:
    problems = [f"{name} is missing" for name in state if name not in info]
    for name, (shape, _) in info.items():
        if name not in state:
            problems.append(f"{name} is surplus")
        elif state[name].shape != shape:
            problems.append(f"{name} has shape {tuple(shape)}, not {tuple(state[name].shape)}")
    if problems:
        raise ValueError("the weights are not those of the model: " + "; ".join(problems))

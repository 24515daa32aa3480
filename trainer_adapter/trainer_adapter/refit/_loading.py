"""Loading received weights into a torch model by name."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trainer_adapter.refit._generation_parameters import EXTRA_STATE, RefitInfo


@torch.no_grad()
def load_weights(model: nn.Module, info: RefitInfo, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy each weight into the entry of the model's state dict with the same name, casting it if the dtype differs.

    info: names, shapes and dtypes of the weights; compared with the model before the first weight is read.

    Raises ValueError naming missing, surplus and mismatched weights; the model is unchanged then. Raises ValueError,
    after weights have changed, if the weights end before all of info arrived.
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
        raise ValueError("the weights do not fit the model: " + "; ".join(problems))

"""Loading received weights into a torch model by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from trainer_adapter.refit._generation_parameters import EXTRA_STATE, RefitInfo, splitter


@torch.no_grad()
def load_weights(model: nn.Module, info: RefitInfo, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy each weight into the entry of the model's state dict with the same name, casting it if the dtype differs.
    Experts that transformers fuses are copied to their places in the fused entry.

    info: names, shapes and dtypes of the weights; compared with the model before the first weight is read.

    Raises ValueError naming missing, surplus and mismatched weights; the model is unchanged then. Raises ValueError,
    after weights have changed, if the weights end before all of info arrived.
    """
    state = {name: value for name, value in model.state_dict().items() if not name.endswith(EXTRA_STATE)}
    split = splitter(model)
    parts = {name: (entry, part) for entry, value in state.items() for name, part in split(entry, value.to("meta"))}
    _check({name: part.shape for name, (_, part) in parts.items()}, info)
    missing, places = set(info), dict[str, Tensor]()
    for name, weight in weights:
        entry = state[parts[name][0]]
        if name in state:
            entry.copy_(weight)
        else:
            if name not in places:  # those of the last entry, because its parts come together
                places = dict(split(parts[name][0], torch.arange(entry.numel(), device=entry.device).view_as(entry)))
            entry.put_(places[name], weight.to(entry))
        missing.discard(name)
    if missing:
        raise ValueError(f"weights ended without {', '.join(sorted(missing))}")


def _check(shapes: Mapping[str, torch.Size], info: RefitInfo) -> None:
    problems = [f"{name} is missing" for name in shapes if name not in info]
    for name, (shape, _) in info.items():
        if name not in shapes:
            problems.append(f"{name} is surplus")
        elif shapes[name] != shape:
            problems.append(f"{name} has shape {tuple(shape)}, not {tuple(shapes[name])}")
    if problems:
        raise ValueError("the weights do not fit the model: " + "; ".join(problems))

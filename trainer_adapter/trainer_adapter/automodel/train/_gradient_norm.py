"""Clipping gradients by their norm where parameters are dealt out over ranks in different ways.

A sharded model holds DTensors over one or several meshes and, for what was left out of sharding, plain tensors that are
the same on all ranks. Torch computes a norm over tensors of one kind only, so each kind has its own, and the norm of
all is the root of the sum of their squares.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def clip_grad_norm(parameters: Iterable[torch.nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients, in place, so that their common L2 norm is at most max_norm; a collective call.

    Returns the norm before, 0-d float32 on the CPU: 0 without gradients. One that is not finite leaves no gradient
    usable; nothing is scaled then.
    """
    kinds = _kinds(parameter.grad for parameter in parameters if parameter.grad is not None)
    norm: Tensor = torch.linalg.vector_norm(
        torch.stack([torch.zeros(()), *(_norm_of_one_kind(grads) for grads in kinds)])
    )
    if norm > max_norm and bool(norm.isfinite()):
        for gradients in kinds:
            torch._foreach_mul_(gradients, max_norm / float(norm))
    return norm


def _kinds(gradients: Iterable[Tensor]) -> list[list[Tensor]]:
    """Gradients that torch can work on together, in the same order on all ranks."""
    kinds: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        kind = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else gradient.device
        kinds.setdefault(kind, []).append(gradient)
    return list(kinds.values())


def _norm_of_one_kind(gradients: list[Tensor]) -> Tensor:
    """On the CPU, in float32 whatever the gradients are."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.float()) for g in gradients]))
    whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return whole.cpu()

"""Clipping gradients by their norm when parameters are sharded in different ways.

A sharded model has DTensors over one or several meshes and plain tensors that are the same on all ranks. Torch computes
a norm over tensors of one layout only. So each layout has a norm, and the total is the root of the sum of their
squares.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def clip_grad_norm(parameters: Iterable[torch.nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale all gradients in place so that their L2 norm is at most max_norm, None: any; a collective call.

    Returns the norm before scaling, 0-d float32 on the CPU; 0 without gradients. If it is not finite, nothing is scaled
    and the gradients must not be used.
    """
    groups = _group_by_layout(parameter.grad for parameter in parameters if parameter.grad is not None)
    norm: Tensor = torch.linalg.vector_norm(
        torch.stack([torch.zeros(()), *(_norm_of_group(grads) for grads in groups)])
    )
    if max_norm is not None and norm > max_norm and bool(norm.isfinite()):
        for gradients in groups:
            torch._foreach_mul_(gradients, max_norm / float(norm))
    return norm


def _group_by_layout(gradients: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group gradients that torch can process together, in the same order on all ranks."""
    groups: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        kind = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else gradient.device
        groups.setdefault(kind, []).append(gradient)
    return list(groups.values())


def _norm_of_group(gradients: list[Tensor]) -> Tensor:
    """The norm of one group on the CPU, computed in float32."""
    norm = torch.nn.utils.get_total_norm([gradient.float() for gradient in gradients])
    whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return whole.cpu()

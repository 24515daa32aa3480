"""Clipping gradients by their norm when parameters are sharded in different ways.

A sharded model has DTensors over one or several meshes and plain tensors that are the same on all ranks. Each rank sums
the squares of the entries that it holds, each square divided by the number of ranks that hold the same entry. One sum
over all ranks is then the total, the same on every rank bit for bit. With sums over one dimension of a mesh after the
other, ranks could scale their copies of a weight by factors that differ in the last bit, and drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from trainer_adapter.automodel.rank import compute_device


def clip_grad_norm(parameters: Iterable[torch.nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale all gradients in place so that their L2 norm is at most max_norm, None: any; a collective call.

    Returns the norm before scaling, 0-d float32 on the CPU; 0 without gradients. If it is not finite, nothing is scaled
    and the gradients must not be used.
    """
    groups = _group_by_layout(parameter.grad for parameter in parameters if parameter.grad is not None)
    norm = _total_norm(groups)
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


def _total_norm(groups: list[list[Tensor]]) -> Tensor:
    """The norm of all groups over all ranks, on the CPU: one collective, and one wait for the device."""
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    shares = [_squares(gradients) / _holders(gradients[0], ranks) for gradients in groups]
    total = sum(shares, torch.zeros((), dtype=torch.float64, device=shares[0].device if shares else compute_device()))
    if ranks > 1:
        torch.distributed.all_reduce(total)
    return total.sqrt().float().cpu()


def _squares(gradients: list[Tensor]) -> Tensor:
    """The sum of the squares of this rank's entries: their norm in float32, squared in float64."""
    own = [_settled(gradient).to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    norm = torch.nn.utils.get_total_norm([part.float() for part in own])
    return norm.double().square()


def _settled(gradient: DTensor) -> DTensor:
    """The gradient without sums that are still to be made over ranks."""
    if not any(placement.is_partial() for placement in gradient.placements):
        return gradient
    return gradient.redistribute(
        placements=[Replicate() if kind.is_partial() else kind for kind in gradient.placements]
    )


def _holders(gradient: Tensor, ranks: int) -> float:
    """How many ranks hold the same entries."""
    if not isinstance(gradient, DTensor):
        return ranks
    sizes = zip(gradient.device_mesh.shape, gradient.placements, strict=True)
    return ranks / prod(size for size, kind in sizes if not (kind.is_replicate() or kind.is_partial()))

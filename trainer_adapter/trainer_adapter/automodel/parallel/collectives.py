"""Collectives inside a forward pass whose result every rank of the group uses in the same way.

A loss over logits that lie in parts on several ranks is computed by all of them from the same numbers, and counts once.
So what a rank owes its own part is the gradient that all of them hold alike: the backward pass hands it on, cut to the
own part, and communicates nothing. Torch's own differentiable collectives sum the gradients of all ranks instead, which
is right for results that ranks use differently; here it would make gradients too large by the size of the group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


def summed(part: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of all ranks' parts, which are of one shape. Differentiable."""
    total: Tensor = _Sum.apply(part, group)  # type: ignore[no-untyped-call]
    return total


def concatenated(part: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """All ranks' parts, which are of one shape, side by side along dim in rank order. Differentiable."""
    whole: Tensor = _Concatenation.apply(part, dim, group)  # type: ignore[no-untyped-call]
    return whole


def largest(part: Tensor, group: ProcessGroup) -> Tensor:
    """The elementwise maximum of all ranks' parts, as a constant."""
    peak = part.detach().clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(peak, op=torch.distributed.ReduceOp.MAX, group=group)
    return peak


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        total = part.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Concatenation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        ctx.own = (dim, part.shape[dim] * torch.distributed.get_rank(group), part.shape[dim])
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
        torch.distributed.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts, dim=dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.narrow(*ctx.own), None, None

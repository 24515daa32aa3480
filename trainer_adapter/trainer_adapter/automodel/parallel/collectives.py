"""A collective inside a forward pass whose result every rank of the group uses in the same way.

All ranks compute a loss over sharded logits from the same numbers, and the loss counts once. So the gradient of a
rank's part is the gradient that all ranks hold, cut to this part: the backward pass communicates nothing. Torch's own
differentiable collectives sum the gradients of all ranks. That is right for results that ranks use differently; here
gradients would be too large by the size of the group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


def concat_over(part: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """Concatenate all ranks' parts, which have the same shape, along dim in rank order. Differentiable."""
    whole: Tensor = Concatenation.apply(part, dim, group)  # type: ignore[no-untyped-call]
    return whole


class Concatenation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
        torch.distributed.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts, dim=dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.chunk(ctx.group.size(), ctx.dim)[torch.distributed.get_rank(ctx.group)], None, None

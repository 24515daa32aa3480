"""Causal attention of a rank's own positions over the keys and values of all ranks that share the sequence.

Keys and values are gathered once a layer, before grouped heads are repeated; queries stay where they are. A key's
gradient is what the queries of all ranks owe it, so the backward pass sums over ranks and hands each its own part back.
The mask is made of real positions once a microbatch: a rank's positions are two stretches, not a range, and packed
sequences must not see each other. It costs S * S / ranks bytes, and kernels compute what it hides: what this way gives
is any device and packed rows, not the longest sequences.

Which sequence is attended to is state of the process, not of a thread: activation checkpointing runs the forward pass
again in whatever thread the backward pass has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class DealtSequence:
    """A sequence of S positions of which each rank of group holds S_own.

    own: [S_own] int64, this rank's positions. gathered: [S] int64, those of all ranks in the group's order. visible:
    [S_own,S] bool, which of the gathered ones a position attends to.
    """

    own: Tensor
    gathered: Tensor
    visible: Tensor
    group: ProcessGroup

    def mask(self, window: int | None) -> Tensor:
        """[S_own,S] bool; window: how many positions a layer looks back, its own included; None: all."""
        if window is None:
            return self.visible
        return self.visible & (self.gathered > self.own[:, None] - window)


def dealt_sequence(dealt: list[Tensor], rank: int, bounds: Tensor | None, group: ProcessGroup) -> DealtSequence:
    """dealt: the positions of each rank. bounds: [N+1], where the N packed sequences begin and end; None: one sequence.

    What lies behind the last bound is a sequence too: padding sees padding.
    """
    own, gathered = dealt[rank], torch.cat(dealt)
    visible = own[:, None] >= gathered
    if bounds is not None:
        ends = bounds[1:].to(gathered.dtype)
        visible &= _sequence_of(own, ends)[:, None] == _sequence_of(gathered, ends)
    return DealtSequence(own, gathered, visible, group)


def _sequence_of(positions: Tensor, ends: Tensor) -> Tensor:
    return torch.bucketize(positions, ends, right=True)


_attended: DealtSequence | None = None


@contextmanager
def attending_to(sequence: DealtSequence) -> Iterator[None]:
    """Until the end of the block, layers attend to this sequence; their inputs are the rank's own positions of it."""
    global _attended
    if _attended is not None:
        raise RuntimeError("another microbatch is still in its forward or backward pass")
    _attended = sequence
    try:
        yield
    finally:
        _attended = None


def gathered_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sliding_window: int | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """As transformers calls its attention functions: query [B,H,S_own,D], key and value [B,H_kv,S_own,D], no mask.

    Returns [B,S_own,H,D]. RuntimeError outside of `attending_to`.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward  # only models need it

    if _attended is None:
        raise RuntimeError("context parallelism: the forward pass needs context_parallel_contexts around it")
    refuse_unusual(attention_mask, arguments)
    key, value = _gathered(key, value, _attended.group)
    mask = _attended.mask(sliding_window)
    output: Tensor = sdpa_attention_forward(module, query, key, value, mask, **arguments)[0]
    return output, None


def refuse_unusual(attention_mask: Tensor | None, arguments: dict[str, Any]) -> None:
    """NotImplementedError for what would otherwise be left out in silence."""
    odd = [name for name in ("softcap", "s_aux", "position_bias") if arguments.get(name) is not None]
    if odd or attention_mask is not None:
        raise NotImplementedError(
            f"context parallelism cannot give attention {', '.join(odd) or 'a mask of the model'}: "
            "set dtensor_cfg.context_parallel_size=1"
        )


def _gathered(key: Tensor, value: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Both of all ranks, [B,H_kv,S,D], by one collective."""
    both: Tensor = _Gathering.apply(torch.cat([key, value], dim=-1), 2, group)  # type: ignore[no-untyped-call]
    keys, values = both.split([key.shape[-1], value.shape[-1]], dim=-1)
    return keys, values


class _Gathering(torch.autograd.Function):
    """All ranks' parts side by side along dim, in their order; each rank uses the whole in its own way."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        ctx.how = (dim, group)
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
        torch.distributed.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts, dim=dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        dim, group = ctx.how
        owed = [part.contiguous() for part in grad.chunk(group.size(), dim=dim)]
        own = torch.empty_like(owed[0])
        torch.distributed.reduce_scatter(own, owed, group=group)
        return own, None, None

"""Causal attention of a rank's positions over the keys and values of all ranks that share the sequence.

Keys and values are gathered once in each layer, before grouped heads are repeated; queries stay on their rank. The
gradient of a key sums contributions of the queries of all ranks, so the backward pass reduces over ranks and returns
each rank its own part.

The mask is built from the original positions once for each microbatch: a rank's positions are two stretches, not a
range, and packed sequences must not attend to each other. It takes S * S / ranks bytes, and kernels compute the masked
part too. This implementation supports any device and packed rows; it is not meant for the longest sequences.

The attended sequence is state of the process, not of a thread: activation checkpointing repeats the forward pass in a
thread of the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from trainer_adapter.automodel.parallel.collectives import Concatenation


@dataclass(frozen=True)
class ShardedSequence:
    """A sequence of S positions; each rank of group holds S_own of them.

    own: [S_own] int64, this rank's positions.
    gathered: [S] int64, the positions of all ranks in the group's order.
    visible: [S_own,S] bool, the gathered positions that each own position attends to.
    """

    own: Tensor
    gathered: Tensor
    visible: Tensor
    group: ProcessGroup

    def mask(self, window: int | None) -> Tensor:
        """[S_own,S] bool. window: positions a layer looks back, its own included; None: all."""
        if window is None:
            return self.visible
        return self.visible & (self.gathered > self.own[:, None] - window)


def shard_sequence(positions: list[Tensor], rank: int, bounds: Tensor | None, group: ProcessGroup) -> ShardedSequence:
    """Make the sequence of this rank.

    positions: of each rank.
    bounds: [N+1], where the N packed sequences begin and end; None: one sequence. Positions after the last bound form a
    sequence too, in which padding attends to padding.
    """
    own, gathered = positions[rank], torch.cat(positions)
    visible = own[:, None] >= gathered
    if bounds is not None:
        ends = bounds[1:].to(gathered.dtype)
        of_own, of_gathered = (torch.bucketize(part, ends, right=True) for part in (own, gathered))
        visible &= of_own[:, None] == of_gathered
    return ShardedSequence(own, gathered, visible, group)


_attended: ShardedSequence | None = None


@contextmanager
def attend_to(sequence: ShardedSequence) -> Iterator[None]:
    """Inside the block, layers attend to this sequence; their inputs are this rank's positions of it."""
    global _attended
    if _attended is not None:
        raise RuntimeError(
            "context parallelism: another microbatch is still in its forward or backward pass; run one at a time"
        )
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
    """An attention function of transformers: query [B,H,S_own,D], key and value [B,H_kv,S_own,D], no mask.

    Returns [B,S_own,H,D]. RuntimeError outside of `attend_to`.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward  # imported when a model runs

    if _attended is None:
        raise RuntimeError("context parallelism: run the forward pass inside context_parallel_contexts")
    refuse_unusual(attention_mask, arguments)
    key, value = _gather_kv(key, value, _attended.group)
    mask = _attended.mask(sliding_window)
    output: Tensor = sdpa_attention_forward(module, query, key, value, mask, **arguments)[0]
    return output, None


def refuse_unusual(attention_mask: Tensor | None, arguments: dict[str, Any]) -> None:
    """Raise NotImplementedError for arguments that this attention would otherwise ignore."""
    odd = [name for name in ("softcap", "s_aux", "position_bias") if arguments.get(name) is not None]
    if odd or attention_mask is not None:
        raise NotImplementedError(
            f"context parallelism does not support attention with {', '.join(odd) or 'a mask of the model'}: "
            "set dtensor_cfg.context_parallel_size=1"
        )


def _gather_kv(key: Tensor, value: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Gather the keys and values of all ranks, [B,H_kv,S,D] each, with one collective."""
    both: Tensor = _AllGather.apply(torch.cat([key, value], dim=-1), 2, group)  # type: ignore[no-untyped-call]
    keys, values = both.split([key.shape[-1], value.shape[-1]], dim=-1)
    return keys, values


class _AllGather(Concatenation):
    """For results that each rank uses in its own way."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grads = [part.contiguous() for part in grad.chunk(ctx.group.size(), ctx.dim)]
        own = torch.empty_like(grads[0])
        torch.distributed.reduce_scatter(own, grads, group=ctx.group)
        return own, None, None

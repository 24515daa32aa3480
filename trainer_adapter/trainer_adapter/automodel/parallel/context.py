"""Sequences dealt out over ranks: which positions a rank computes, and the attention that sees those of the others.

A sequence is cut into 2 * cp stretches, of which rank r gets number r and, from the end, number r: causal attention
costs the more the later a position is, and so all ranks have the same to do. The deal exists during the forward and
backward pass of one microbatch only; before and after it the microbatch's tensors are whole.

Models reach attention by a name registered with transformers, and no mask goes with that name: transformers would take
positions that jump for packed sequences and mask the early stretch from the late one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from trainer_adapter.automodel.choices import context_parallel_attention
from trainer_adapter.automodel.config import DistributedContext
from trainer_adapter.automodel.data import FlashAttentionKwargs, ProcessedInputs
from trainer_adapter.automodel.packages import require_transformers
from trainer_adapter.automodel.parallel.gathered_attention import attending_to, dealt_sequence, gathered_attention
from trainer_adapter.automodel.parallel.ring_attention import attending_in_a_ring, ring_attention

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_ATTENTIONS = {"gathered": gathered_attention, "torch": ring_attention}
Deal: TypeAlias = Callable[[ProcessedInputs, "DeviceMesh"], AbstractContextManager[Tensor]]
"""Inside it, attention sees all ranks; it gives the positions [S_own] of this one."""


def register_attention(config: Mapping[str, Any]) -> str:
    """The configured attention's name for transformers, under which it is known from now on."""
    kind = context_parallel_attention(config)
    name = f"rl_dataplane_{kind}"
    require_transformers().AttentionInterface.register(name, _ATTENTIONS[kind])
    return name


def check_attention(model: Any) -> None:
    """NotImplementedError for a model whose layers do not all attend by a registered function.

    They would take a rank's positions for all there are, and no error would tell.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds or not getattr(model, "_supports_attention_backend", False):
        raise NotImplementedError(
            f"Context parallel is not supported for {type(model).__name__}: its layers compute "
            f"{', '.join(sorted(kinds)) or 'attention by themselves'}; set dtensor_cfg.context_parallel_size=1"
        )


def context_parallel_contexts(
    context: DistributedContext, config: Mapping[str, Any]
) -> Callable[[ProcessedInputs], AbstractContextManager[None]] | None:
    """For the inputs of a microbatch the context of its forward and backward pass; None where nothing is dealt out.

    Inside it the tensors of cp_buffers, the same objects, hold this rank's S / cp_size positions; afterwards they are
    whole again, also after an exception. ValueError for inputs that were not prepared for context parallelism, and for
    a length that does not divide.
    """
    if context.cp_size == 1:
        return None
    mesh = context.device_mesh["cp"]
    deal: Deal = {"gathered": _attending_to_gathered, "torch": attending_in_a_ring}[context_parallel_attention(config)]

    @contextmanager
    def entered(inputs: ProcessedInputs) -> Iterator[None]:
        _check_inputs(inputs, mesh.size())
        with deal(inputs, mesh) as own, _holding(inputs.cp_buffers, own):
            yield

    return entered


def _check_inputs(inputs: ProcessedInputs, ranks: int) -> None:
    if not inputs.has_context_parallel:
        raise ValueError(f"the microbatch was not prepared for context parallelism: process it with cp_size={ranks}")
    if inputs.seq_len % (2 * ranks):
        raise ValueError(
            f"input_ids: {inputs.seq_len} tokens a row cannot be dealt out over context_parallel_size={ranks} in an "
            f"early and a late stretch each: set make_sequence_length_divisible_by to a multiple of {2 * ranks}"
        )


@contextmanager
def _holding(buffers: list[Tensor], positions: Tensor) -> Iterator[None]:
    """The tensors hold these positions of their dim 1; their memory, often a part of a batch, is not touched."""
    whole = [buffer.data for buffer in buffers]
    try:
        for buffer in buffers:
            buffer.data = buffer.data.index_select(1, positions)
        yield
    finally:
        for buffer, data in zip(buffers, whole, strict=True):
            buffer.data = data


@contextmanager
def _attending_to_gathered(inputs: ProcessedInputs, mesh: DeviceMesh) -> Iterator[Tensor]:
    dealt = dealt_positions(inputs.seq_len, mesh.size(), inputs.input_ids.device)
    packed = inputs.flash_attn_kwargs
    bounds = packed.cu_seqlens_q if isinstance(packed, FlashAttentionKwargs) else None
    rank = mesh.get_local_rank()
    with attending_to(dealt_sequence(dealt, rank, bounds, mesh.get_group())):
        yield dealt[rank]


def dealt_positions(length: int, ranks: int, device: torch.device) -> list[Tensor]:
    """For each rank its positions, [length / ranks] int64; 2 * ranks divides length."""
    stretches = torch.arange(length, device=device).chunk(2 * ranks)
    return [torch.cat([stretches[rank], stretches[-1 - rank]]) for rank in range(ranks)]
